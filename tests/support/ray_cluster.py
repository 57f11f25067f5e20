"""A cluster of Ray's on this machine: a head, and two nodes with its engine. It ends when its standard input does."""

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Its address. It is a process of its own: what it starts ends with it. `-P`: html.py beside it is not Python's.

    One at a time: Ray keeps the address of the machine's cluster in a file, and a second one takes jobs of the first.
    """
    with (Path(tempfile.gettempdir()) / "truetag-test-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.communicate()


def main() -> None:
    """Start it, print its address, and wait."""
    from ray.cluster_utils import (
        Cluster,
    )  # a second to import, for who only wants the context manager

    small = {
        "object_store_memory": 100_000_000,
        "include_dashboard": False,
        "include_log_monitor": False,
    }
    # Nobody asks for more nodes, and no worker is started before it has a task: a second of a core each.
    head = {
        "num_cpus": 0,
        "no_monitor": True,
        "_system_config": {"prestart_worker_first_driver": False},
    }
    cluster: Any = Cluster(initialize_head=True, head_node_args={**head, **small})
    for number in range(2):
        # Nodes of one machine would share a folder, where each unpacks the checkout and first removes what is there:
        # tasks of another node import from it meanwhile.
        own = {"runtime_env_dir_name": f"runtime-{number}"}
        cluster.add_node(num_cpus=1, resources={"engine": 1}, **own, **small)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()

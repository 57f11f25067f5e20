"""Start a cluster of Ray on this machine: a head, and two nodes that share the machine's engine.

Run as a program, it is the cluster, and ends when its standard input does.
"""

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
    """Yield the address of a cluster. It is a process of its own: what it starts ends with it.

    Only one runs at a time: Ray keeps the address of the machine's cluster in a file, and a second
    cluster would take jobs of the first.
    """
    with (Path(tempfile.gettempdir()) / "truetag-test-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # -P: without the folder of this file on the path, where html.py would hide Python's own.
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
    """Start the cluster, print its address, and wait until the standard input ends."""
    # It takes a second to import, which users of the context manager need not wait for.
    from ray.cluster_utils import Cluster

    small = {
        "object_store_memory": 100_000_000,
        "include_dashboard": False,
        "include_log_monitor": False,
    }
    # No node is ever added, and no worker starts before it has a task: each would take a second of
    # a core. Tasks give way to nothing else, as they would by default: beside other tests, they
    # would wait for minutes.
    head = {
        "num_cpus": 0,
        "no_monitor": True,
        "_system_config": {"prestart_worker_first_driver": False, "worker_niceness": 0},
    }
    cluster: Any = Cluster(initialize_head=True, head_node_args={**head, **small})
    for number in range(2):
        # Nodes of one machine would share a folder into which each unpacks the checkout. It first
        # removes what is there, while tasks of another node import from it.
        own = {"runtime_env_dir_name": f"runtime-{number}"}
        cluster.add_node(num_cpus=1, resources={"engine": 1}, **own, **small)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()

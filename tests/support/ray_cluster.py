"""A cluster of Ray's on this machine: a head, and nodes with an engine. It ends when its standard input does.

`python ray_cluster.py [URL...]`: a node for each engine, which it finds in DOCKER_HOST; without any, two nodes that
find the machine's own.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def ray_cluster(engines: Sequence[str] = ()) -> Iterator[str]:
    """Its address. It is a process of its own: what it starts ends with it."""
    process = subprocess.Popen(
        [sys.executable, __file__, *engines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def main(engines: Sequence[str]) -> None:
    """Start it, print its address, and wait."""
    from ray.cluster_utils import Cluster  # a second to import, for who only wants the context manager

    small = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes: list[dict[str, Any]] = [{"env_vars": {"DOCKER_HOST": url}} for url in engines] or [{}, {}]
    for number, node in enumerate(nodes):
        # Nodes of one machine would share a folder, where each unpacks the checkout and first removes what is there:
        # tasks of another node import from it meanwhile.
        own = {"runtime_env_dir_name": f"runtime-{number}"}
        cluster.add_node(num_cpus=1, resources={"engine": 1}, **own, **small, **node)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])

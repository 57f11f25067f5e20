"""A cluster of Ray's on this machine: a head and two nodes with an engine. Ends when its standard input does."""

import sys
from typing import Any

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    small = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={"engine": 1}, **small)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()

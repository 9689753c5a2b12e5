"""A Ray cluster of three nodes on one machine, run as a program by a Python that has Ray.

It prints its address. Orders come on standard input, a line each: ``node RAYLET`` kills the node with the raylet of that
process id, ``control store`` kills Ray's control store. Each is answered with ``done``. It ends with its standard input.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ray._private.ray_constants import PROCESS_TYPE_RAYLET
    from ray.cluster_utils import Cluster

    STORE = 80 << 20  # bytes of a node's object store, the least that Ray takes
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": STORE, "include_dashboard": False}
    )
    nodes = [cluster.head_node, *(cluster.add_node(num_cpus=4, object_store_memory=STORE) for _ in range(2))]
    raylets = {node.all_processes[PROCESS_TYPE_RAYLET][0].process.pid: node for node in nodes}
    print(cluster.address, *raylets, flush=True)
    for line in sys.stdin:
        if line.startswith("node"):
            cluster.remove_node(raylets[int(line.split()[1])], allow_graceful=False)
        else:
            cluster.head_node.kill_gcs_server(check_alive=False)
        print("done", flush=True)
    cluster.shutdown()

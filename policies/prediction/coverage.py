"""Coverage: which process has the predictor of each worker, where there are several on several machines.

A worker's predictor is on its machine if one is there, since news of the worker is fresh there; else where there are fewest.
A worker keeps its predictor while that is as good. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def covered(workers: Mapping[str, str], nodes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the node of each worker's predictor; empty while there is no node.

    workers, nodes: their machines. before: the result so far.
    """
    found: dict[str, str] = {}
    load: Counter[str] = Counter()

    def choices(machine: str) -> list[str]:
        return [node for node, where in nodes.items() if where == machine] or list(nodes)

    for worker, machine in workers.items():
        if (node := before.get(worker, "")) in choices(machine):
            found[worker] = node
            load[node] += 1
    for worker, machine in workers.items():
        if worker not in found and nodes:
            found[worker] = node = min(choices(machine), key=lambda node: (load[node], node))
            load[node] += 1
    return found

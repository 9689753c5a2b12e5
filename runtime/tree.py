"""Supervision trees as data, readable before anything runs: the order of starts, supervisors and limits of restarts.

A ``Branch`` is a supervisor; its children are actors (``Child``), processes (``ProcessSpec``, with what runs inside) and
further branches. A tree has names and rules only. What an actor is made from (settings, sockets, objects of this process) is
bound to it by name when the tree is started.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..policies.cluster.restart_policy import Backoff, Strategy
from .actor.actor import Actor
from .actor.ref import Ref
from .base.address import Address
from .base.down import Down
from .cluster.process import Nodes, Process
from .node.actor_classes import load_class
from .node.node import Node
from .supervisor import Child, Supervisor

log = logging.getLogger("blockwright.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A node of its own. ``entry``: "module:function", which starts ``inside`` there with ``start_inside``. ``dormant``: as
    ``Child`` has it."""

    name: str
    entry: str
    inside: Branch
    dormant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A supervisor. ``children``: in the order in which they start. The rest is ``Supervisor``'s."""

    name: str
    children: tuple[Child | ProcessSpec | Branch, ...] = ()
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int | None = 3
    period: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)

    def supervisor(self, values: Mapping[str, Any], nodes: Nodes | None) -> Child:
        """Return the supervisor that starts this branch.

        ``values``: by the name of a child, the arguments of its class (or an instance, which lives once), or the
        configuration of its process.
        """
        rules = {
            "strategy": self.strategy,
            "intensity": self.intensity,
            "period": self.period,
            "backoff": self.backoff,
        }
        children = [_bound(child, values, nodes) for child in self.children]
        return Child(name=self.name, actor=Supervisor, args=(children,), kwargs=rules, drain=0.0)


def _bound(child: Child | ProcessSpec | Branch, values: Mapping[str, Any], nodes: Nodes | None) -> Child:
    if isinstance(child, Branch):
        return child.supervisor(values, nodes)
    if isinstance(child, ProcessSpec):
        args = nodes, child.entry, values[child.name]
        return Child(name=child.name, actor=Process, args=args, drain=0.0, dormant=child.dormant)
    value = values.get(child.name, ())
    if isinstance(value, Actor):
        return replace(child, actor=value)
    actor = load_class(child.actor) if isinstance(child.actor, str) else child.actor
    return replace(child, actor=actor, args=value)


async def start_tree(
    node: Node, tree: Branch, values: Mapping[str, Any], *, nodes: Nodes | None = None, owner: Address | None = None
) -> Ref:
    """Start all of it on this node; returns when every actor has started (processes come up behind it).

    nodes: where its processes are launched. Raises what the first child raises that cannot start; then nothing is left.
    """
    root = tree.supervisor(values, nodes)
    started: Ref = await node.spawn(root.actor, name=root.name, args=root.args, kwargs=root.kwargs, owner=owner)
    return started


async def start_inside(node: Node, tree: Branch, values: Mapping[str, Any]) -> Ref:
    """Call ``start_tree`` in the entry of a process: the tree ends with the actor that stands for the process at the
    head, and the process with the tree.
    """
    assert node.head is not None, "a process is launched by a head"
    root = await start_tree(node, tree, values, owner=Address(node.head.name, node.name))

    def ended(down: Down) -> None:
        meant = node.stopping or down.cause.startswith("owner ")  # it goes with the actor at the head
        log.log(logging.DEBUG if meant else logging.ERROR, "%s ended: %s", down.ref, down.cause)
        node.close(f"{down.ref} ended: {down.cause}")

    node.monitor(root, ended)
    return root


def lines(tree: Branch, indent: str = "") -> Iterator[str]:
    """Return the tree as text: a line for each supervisor, process and actor, indented under its supervisor."""
    gives_up = f"at most {tree.intensity} restarts in {tree.period:g} s" if tree.intensity is not None else "never gives up"
    yield f"{indent}{tree.name}: {tree.strategy.replace('_', ' ')}, {gives_up}"
    for child in tree.children:
        if isinstance(child, Branch):
            yield from lines(child, indent + "  ")
        elif isinstance(child, ProcessSpec):
            yield f"{indent}  {child.name}: process of {child.entry}" + ", when it is asked for" * child.dormant
            yield from lines(child.inside, indent + "    ")
        else:
            yield f"{indent}  {child.name}: {child.actor.rpartition(':')[2]}"

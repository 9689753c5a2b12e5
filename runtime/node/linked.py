"""What ties actors together: monitors that end in an actor's own ``on_down``, and links, by which actors die together.

Owns the rule of links: an abnormal end of one ends the other, being stopped in order does not. A link is two monitors, one
on each side; the far side is asked by its node's system actor. Reporting ends is ``monitors``', ending is ``life``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.ref import Address, parse_address
from blockwright.runtime.node.life import CAUSE_LIMIT, Life, abnormal
from blockwright.runtime.node.peers import Down

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node


class Links:
    """See the module; of the actors of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def monitor(self, actor: Actor, target: Address) -> Callable[[], None]:
        """What ``Actor.monitor`` does. Raises ActorDied when the actor itself is over."""
        life, key = self._node.lives.of(actor), object()

        def report(down: Down) -> None:
            life.held.pop(key, None)
            self._node.lives.post(life, partial(actor.on_down, down))

        def undo() -> None:
            if (take_back := life.held.pop(key, None)) is not None:
                take_back()

        life.held[key] = self._node.monitors.watch(target, report)
        return undo

    def link(self, actor: Actor, target: Address) -> None:
        """What ``Actor.link`` does. Raises ActorDied when the actor itself is over."""
        life = self._node.lives.of(actor)
        if self._tie(life, target):
            if target.node == self._node.name:
                self.accept(target.key, str(life.address))
            else:
                self._node.monitors.inform(target, "tie", target.key, str(life.address))

    def unlink(self, actor: Actor, target: Address) -> None:
        """What ``Actor.unlink`` does."""
        life = self._node.lives.of(actor)
        self._untie(life, target)
        if target.node == self._node.name:
            self.release(target.key, str(life.address))
        else:
            self._node.monitors.inform(target, "untie", target.key, str(life.address))

    def accept(self, key: str, other: str) -> None:
        """An actor linked itself to one of this node. If that is over, the other learns it by its own monitor."""
        if (life := self._node.lives.living(key)) is not None:
            self._tie(life, parse_address(other))

    def release(self, key: str, other: str) -> None:
        """The other side took the link back."""
        if (life := self._node.lives.living(key)) is not None:
            self._untie(life, parse_address(other))

    def _tie(self, life: Life, other: Address) -> bool:
        if ("link", other) in life.held:
            return False
        life.held["link", other] = self._node.monitors.watch(other, partial(self._died, life, other))
        return True

    def _untie(self, life: Life, other: Address) -> None:
        if (take_back := life.held.pop(("link", other), None)) is not None:
            take_back()

    def _died(self, life: Life, other: Address, down: Down) -> None:
        life.held.pop(("link", other), None)
        if abnormal(down.cause):
            self._node.lives.end(life, f"linked {down.ref} died: {down.cause}"[:CAUSE_LIMIT])

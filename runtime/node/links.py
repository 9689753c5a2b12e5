"""Links and monitors that actors set: linked actors die together, monitored ones report to ``on_down``.

Owns the rule of links: an abnormal end of one ends the other, being stopped in order does not; and the rule of owners:
an actor ends with its owner. A link is two monitors, one on each side; the far side is asked through its node's service.
Reporting ends is ``monitors``', ending is ``lifecycle``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..base.address import Address, parse_address
from ..base.down import CAUSE_LIMIT, Down, abnormal
from .lifecycle import ActorLife, LocalActors
from .monitors import Monitors


class Links:
    """See the module; of the actors of one node. outlives: whether this node goes on when that one, its head, has ended."""

    def __init__(self, node: str, actors: LocalActors, monitors: Monitors, outlives: Callable[[str], bool]) -> None:
        self._node = node
        self._outlives = outlives
        self._orphans: list[tuple[ActorLife, Address]] = []  # whose owner went with a head, and what it was
        self._actors = actors
        self._monitors = monitors

    def own(self, life: ActorLife, owner: Address) -> None:
        """End that life when its owner's is over."""
        life.held[owner] = self._monitors.watch(owner, partial(self._owner_over, life, owner))

    def renew(self) -> None:
        """Give orphans back to their owners, which live again on the next head; an orphan whose owner does not, ends."""
        orphans, self._orphans = self._orphans, []
        for life, owner in orphans:
            if self._actors.living(life.address.key) is life:
                self.own(life, owner)

    def monitor(self, actor: Address, target: Address) -> Callable[[], None]:
        """Do the work of ``Actor.monitor``. Raises ActorDied when the actor itself is over."""
        life, key = self._actors.of(actor), object()

        def report(down: Down) -> None:
            life.held.pop(key, None)
            self._actors.post(actor, partial(life.actor.on_down, down))

        def undo() -> None:
            if (take_back := life.held.pop(key, None)) is not None:
                take_back()

        life.held[key] = self._monitors.watch(target, report)
        return undo

    def link(self, actor: Address, target: Address) -> None:
        """Do the work of ``Actor.link``. Raises ActorDied when the actor itself is over."""
        life = self._actors.of(actor)
        if self._tie(life, target):
            if target.node == self._node:
                self.accept(target.key, str(life.address))
            else:
                self._monitors.inform(target, "tie", target.key, str(life.address))

    def unlink(self, actor: Address, target: Address) -> None:
        """Do the work of ``Actor.unlink``."""
        life = self._actors.of(actor)
        self._untie(life, target)
        if target.node == self._node:
            self.release(target.key, str(life.address))
        else:
            self._monitors.inform(target, "untie", target.key, str(life.address))

    def accept(self, key: str, other: str) -> None:
        """Record that another actor linked itself to an actor of this node.

        If the actor here is over, the other learns it by its own monitor.
        """
        if (life := self._actors.living(key)) is not None:
            self._tie(life, parse_address(other))

    def release(self, key: str, other: str) -> None:
        """Remove a link that the other side took back."""
        if (life := self._actors.living(key)) is not None:
            self._untie(life, parse_address(other))

    def _tie(self, life: ActorLife, other: Address) -> bool:
        if ("link", other) in life.held:
            return False
        life.held["link", other] = self._monitors.watch(other, partial(self._died, life, other))
        return True

    def _untie(self, life: ActorLife, other: Address) -> None:
        if (take_back := life.held.pop(("link", other), None)) is not None:
            take_back()

    def _died(self, life: ActorLife, other: Address, down: Down) -> None:
        life.held.pop(("link", other), None)
        if abnormal(down.cause):
            self._actors.end(life, f"linked {down.ref} died: {down.cause}"[:CAUSE_LIMIT])

    def _owner_over(self, life: ActorLife, owner: Address, down: Down) -> None:
        if not owner.incarnation and down.cause.startswith("node down") and self._outlives(owner.node):
            self._orphans.append((life, owner))
            return
        self._actors.end(life, f"owner {down.ref} has ended: {down.cause}"[:CAUSE_LIMIT])

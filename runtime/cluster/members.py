"""The members of a cluster, as their head knows them: the last life of each name, its state, and its number.

Owns numbers (no two lives of a name have the same, also across heads) and the count of members that are missed. Declares
none down, sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...policies.cluster.head_succession import doubts
from ...transport.address import PeerId
from ..base.down import Down, OnDown

log = logging.getLogger("blockwright.runtime")
OnUp = Callable[[str, int], None]
OnLaunch = Callable[[str, int, str], None]
OnSuperseded = Callable[[int, str], None]


@dataclass(slots=True, eq=False)
class Member:
    """One life of a node."""

    id: PeerId
    joined: bool = False  # by hand: there is no process of ours
    role: str = ""  # of the join text that it brought, or was started with
    text: str = ""  # id of the join text that its launcher was given, for this life alone
    key: str = ""  # of its connections, if there are keys
    leaving: bool = False  # it said so
    pid: int = 0
    state: str = "starting"  # "expected" (of an earlier head, not back yet) | "starting" | "up" | "down"
    adopted: bool = False  # it was a member of an earlier head
    attempt: int = 0  # of its last request to be taken back
    back: float = -math.inf  # when it came back into the reach of this head last, or had lost its head and returned
    claimed: bool = True  # something of this head answers for it; of an adopted one: since ``launch`` was asked for it
    silent: float = 0.0  # seconds since it was heard (while it starts: since launch), as far as this head was awake
    heard: float | None = None  # what ``Peer.heard`` was at the last check
    unanswered: float = -math.inf  # when pings failed that may have been this head's own fault
    missed: str = ""  # why it is to be declared down
    due: float = math.inf  # when, unless most others are missed, too,
    until: float = math.inf  # and when even so
    asked: float = -math.inf  # when others were asked whether they reach it
    vouched: tuple[str, ...] = ()  # by which of them
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # up, or down before it was

    @property
    def returning(self) -> bool:
        """It is a member of an earlier head and not yet up again."""
        return self.state == "expected" or (self.state == "starting" and self.adopted)

    def miss(self, cause: str, due: float, until: float) -> None:
        """Note that it is out of reach; the first cause stays."""
        self.missed = self.missed or cause
        self.due, self.until = min(self.due, due), min(self.until, until)

    def found(self) -> None:
        """Note that it is in reach again, or may be: its silence counts anew."""
        self.silent, self.unanswered = 0.0, -math.inf
        self.missed = ""
        self.due = self.until = math.inf
        self.asked, self.vouched = -math.inf, ()


class ClusterMembers:
    """See the module."""

    def __init__(self) -> None:
        self.last: dict[str, Member] = {}  # the last life of each name
        self._numbers: dict[str, int] = {}  # the highest number that was heard of, of lives of earlier heads

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.last.values()))

    def get(self, name: str) -> Member | None:
        return self.last.get(name)

    def find(self, node: PeerId) -> Member | None:
        """Return the member if this is its last life."""
        member = self.last.get(node.name)
        return member if member is not None and member.id == node else None

    def add(self, member: Member) -> Member:
        self.last[member.id.name] = member
        return member

    def next(self, name: str) -> PeerId:
        """Return the next life of that name."""
        last = self.last.get(name)
        return PeerId(name, max(last.id.incarnation if last is not None else 0, self._numbers.get(name, 0)) + 1)

    def note(self, node: PeerId) -> None:
        """Note that this life existed, so that its number is not given again."""
        self._numbers[node.name] = max(self._numbers.get(node.name, 0), node.incarnation)

    def over(self, node: PeerId) -> bool:
        """Return True if that life is known to be over."""
        last = self.last.get(node.name)
        if last is None or last.id.incarnation < node.incarnation:
            return self._numbers.get(node.name, 0) >= node.incarnation
        return last.id != node or last.state == "down"

    def returning(self) -> list[Member]:
        """Return the members of earlier heads that are not up again."""
        return [member for member in self.last.values() if member.returning]

    def doubtful(self) -> str:
        """Return a sentence if most members are missed at once, so that the head doubts itself; else ""."""
        living = [m for m in self.last.values() if m.state == "up" or m.returning]
        missing = sorted(m.id.name for m in living if m.missed)
        if not doubts(len(missing), len(living)):
            return ""
        named = ", ".join(missing[:4]) + (" and others" if len(missing) > 4 else "")
        return f"{len(missing)} of {len(living)} members are out of reach at once ({named}), so none is declared down"


class MemberCallbacks:
    """The callbacks of the application about members. An error of a callback stops nothing."""

    def __init__(self) -> None:
        self.on_launch: list[OnLaunch] = []
        self.on_up: list[OnUp] = []
        self.on_adopt: list[OnUp] = []
        self.on_down: list[OnDown] = []
        self.on_superseded: list[OnSuperseded] = []
        self.on_cut: list[Callable[[], None]] = []

    def launched(self, node: PeerId, failure: str) -> None:
        for callback in list(self.on_launch):
            _guarded(callback, node.name, node.incarnation, failure)

    def up(self, node: PeerId) -> None:
        for callback in list(self.on_up):
            _guarded(callback, node.name, node.incarnation)

    def adopted(self, node: PeerId) -> None:
        for callback in list(self.on_adopt):
            _guarded(callback, node.name, node.incarnation)

    def down(self, down: Down) -> None:
        for callback in list(self.on_down):
            _guarded(callback, down)

    def cut(self) -> None:
        for callback in list(self.on_cut):
            _guarded(callback)

    def superseded(self, epoch: int, sentence: str) -> None:
        for callback in list(self.on_superseded):
            _guarded(callback, epoch, sentence)


def _guarded(callback: Callable[..., None], *args: Any) -> None:
    """Run a callback of the application, whose error must not stop the head."""
    try:
        callback(*args)
    except Exception:
        log.exception("a membership callback raised")

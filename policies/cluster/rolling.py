"""The roll of a cluster from one release to the next: which members are still of another release, and what is in the way.

Members are compared with the newest release among them: by the protocol that they speak, then by their version. Sends
nothing and starts nothing: the starter of a member rolls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROLES = ("head", "gateway", "node", "worker")  # the order of a roll
_NUMBERS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class RunningRelease:
    """A member and its release. protocol: the versions of messages that it speaks, such as "5-6"."""

    name: str
    role: str
    release: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Roll:
    """The state of a roll. release: the newest one. left: members of another, in the order in which to roll them."""

    release: str
    members: tuple[RunningRelease, ...]
    left: tuple[RunningRelease, ...]


def roll_of(members: Sequence[RunningRelease]) -> Roll:
    """Return the state of a roll. ``members``: at least one."""
    newest = max(members, key=_age)
    ordered = tuple(sorted(members, key=lambda one: (_place(one.role), one.name)))
    same = (newest.release, newest.protocol)
    return Roll(newest.release, ordered, tuple(one for one in ordered if (one.release, one.protocol) != same))


def numerics_apart(workers: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the workers of each numerics, if there are several: pages do not move from one to another.

    workers: numerics of each; empty where it has not said.
    """
    found: dict[str, list[str]] = {}
    for name, numerics in sorted(workers.items()):
        if numerics:
            found.setdefault(numerics, []).append(name)
    return found if len(found) > 1 else {}


def _place(role: str) -> int:
    return ROLES.index(role) if role in ROLES else len(ROLES)


def _age(one: RunningRelease) -> tuple[list[int], list[int], bool]:
    """Return what is greater for a later release; a development version comes before its release."""
    spoken = [int(number) for number in _NUMBERS.findall(one.protocol)]
    public, _, rest = one.release.partition(".dev")
    return spoken[-1:] + spoken[:1], [int(number) for number in _NUMBERS.findall(public)], not rest

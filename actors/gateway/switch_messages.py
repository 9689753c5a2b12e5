"""What the controller asks of gateways when routes end while they are used: parameters are dropped, or have come back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwitchRoutes:
    """controller -> gateway: what it has on the ``ended`` routes goes on on the routes ``to`` (ids), which are in force for
    gateways with publication ``version``, as the others are no more.

    dropped: parameters disappear, so that nothing can go on where it is; else requests go on while their pages are copied.
    gateways: how many are asked, who share the room on the new routes.
    """

    number: int  # unique at the controller
    version: int
    ended: list[str]
    to: list[str]
    dropped: bool
    gateways: int = 1


@dataclass(frozen=True, slots=True)
class SwitchFigures:
    """What became of the stale requests of one switch: those that had KV on a route that ended.

    A stall is the time from the end of an attempt on the old route to the first word of the one on the new route.
    """

    number: int
    stale: int = 0  # requests
    copied: int = 0  # of them, that found pages
    pages: int = 0  # copied
    nbytes: int = 0
    recomputed: int = 0  # tokens
    stall_sum: float = 0.0  # seconds
    stall_worst: float = 0.0

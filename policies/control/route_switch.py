"""Messages between the controller and gateways for routes that end while in use: parameters are dropped or restored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwitchRoutes:
    """The controller's order, after all earlier publications, to move all requests of ``ended`` routes to ``to`` (ids).

    dropped: parameters disappear, so that nothing can go on where it is; otherwise requests run on while their pages are
    copied. Set as the order leaves: version: of the last publication; with it, the routes ``to`` are in force and the ended
    ones are not. gateways: number of gateways that get the order and share the capacity of the new routes.
    """

    number: int  # unique at the controller
    ended: list[str]
    to: list[str]
    dropped: bool
    version: int = 0
    gateways: int = 1


@dataclass(frozen=True, slots=True)
class SwitchFigures:
    """The outcome for the stale requests of one switch: requests that had KV on a route that ended.

    A stall is the time from the end of the attempt on the old route to the first report of the one on the new route.
    """

    number: int
    stale: int = 0  # requests
    copied: int = 0  # stale requests that found pages
    pages: int = 0  # pages copied
    nbytes: int = 0
    recomputed: int = 0  # tokens
    stall_sum: float = 0.0  # seconds
    stall_worst: float = 0.0

"""The controller's publication of routes, which gateways and workers apply."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..model.chain import Chain, Route
from .load_failure import LoadFailure


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """A publication of routes in force and of all that can come into force (``planned``).

    It holds all of them, or the changes after ``since``. A difference is valid for a receiver that has version ``since``
    or a later one; all others need the whole. A worker's part has only the routes through it, and is applied as a whole:
    see ``policies/sweep/local_routes.py``.
    """

    version: int
    chains: list[Chain]
    routes: list[Route]
    planned: list[Route]
    withdrawn: list[str] = field(default_factory=list)  # all applications known and not served
    capacity: dict[str, int] = field(default_factory=dict)  # route id -> tokens of one sequence its workers can hold
    draining: list[str] = field(default_factory=list)  # all applications that take no new requests but finish theirs
    since: int = 0  # base version of the difference; 0: the whole
    ended: list[str] = field(default_factory=list)  # ids of routes no longer in force; for a worker, no longer planned
    removed: list[str] = field(default_factory=list)  # applications gone for good, with their planned routes
    on_demand: list[str] = field(default_factory=list)  # all applications that did not fit and load on demand
    capacity_alone: dict[str, int] = field(default_factory=dict)  # ``capacity`` once others are unloaded; may be empty
    failed: list[LoadFailure] = field(default_factory=list)  # all applications that could load nowhere at the last try
    default: str = ""  # id for requests without a model, served or not; "": not stated

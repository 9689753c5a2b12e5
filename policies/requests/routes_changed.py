"""The controller's publication of routes, which gateways and workers apply.

A message has a limit, and a publication of a large cluster is larger. It travels in pieces, and is applied once it is there
as a whole: half of it would take routes from requests that run on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..model.chain import Chain, Route
from .load_failure import LoadFailure

PIECE = 2 << 20  # bytes of a piece when encoded, as estimated
# the fields of a publication that a piece holds a part of
PARTS = (
    *("chains", "routes", "planned", "withdrawn", "capacity", "draining", "ended", "removed", "on_demand"),
    *("capacity_alone", "failed", "load_seconds"),
)


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
    piece: int = 0  # of ``pieces``, counted from 0
    pieces: int = 1
    # of all applications on demand that are not there and have variants: loading takes about that long; absent: unknown
    load_seconds: dict[str, float] = field(default_factory=dict)

    def split(self, limit: int = PIECE) -> list[RoutesChanged]:
        """Return the pieces in which it travels, of about ``limit`` bytes each; itself if it is small."""
        parts: list[dict[str, Any]] = [{}]
        room = limit
        for name, item, size in self._items():
            if size > room and parts[-1]:
                parts.append({})
                room = limit
            room -= size
            if isinstance(item, tuple):
                parts[-1].setdefault(name, {})[item[0]] = item[1]
            else:
                parts[-1].setdefault(name, []).append(item)
        if len(parts) == 1:
            return [self]
        empty = replace(self, **{name: type(getattr(self, name))() for name in PARTS})
        return [replace(empty, **part, piece=number, pieces=len(parts)) for number, part in enumerate(parts)]

    def _items(self) -> Iterator[tuple[str, Any, int]]:
        """Yield each entry of each part, with the part's name and about its bytes when encoded."""
        for name in PARTS:
            held = getattr(self, name)
            for item in held.items() if isinstance(held, dict) else held:
                yield name, item, _bytes(item)


class RoutePieces:
    """The pieces that a receiver has of one publication. A lost piece loses the publication, which is then sent again."""

    def __init__(self) -> None:
        self._held: list[RoutesChanged] = []

    def take(self, update: RoutesChanged) -> RoutesChanged | None:
        """Return a publication that is there as a whole with this piece, else None."""
        last = self._held[-1] if self._held else None
        follows = last is not None and (last.version, last.since, last.pieces, last.piece + 1) == _place(update)
        held = [*self._held, update] if follows else [update]
        if held[0].piece or len(held) < update.pieces:
            self._held = [] if held[0].piece else held
            return None
        self._held = []
        return _joined(held)


def _place(update: RoutesChanged) -> tuple[int, int, int, int]:
    return update.version, update.since, update.pieces, update.piece


def _joined(pieces: list[RoutesChanged]) -> RoutesChanged:
    if len(pieces) == 1:
        return pieces[0]
    parts: dict[str, Any] = {}
    for name in PARTS:
        held = [getattr(piece, name) for piece in pieces]
        if isinstance(held[0], dict):
            parts[name] = {key: value for part in held for key, value in part.items()}
        else:
            parts[name] = [item for part in held for item in part]
    return replace(pieces[0], **parts, piece=0, pieces=1)


def _bytes(item: object) -> int:
    """Return about the bytes that an entry of a publication takes when encoded, not too few."""
    match item:
        case Chain():
            return 512 + len(item.defaults) + sum(32 + 192 * len(block.components) for block in item.blocks)
        case Route():
            return 64 + len(item.id) + len(item.application) + sum(32 + len(hop.worker) for hop in item.hops)
        case LoadFailure():
            return 64 + len(item.application) + len(item.why)
        case str():
            return 8 + len(item)
        case _:
            return 64 + len(str(item))

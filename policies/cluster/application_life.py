"""The life of applications: additions, rolling updates, readiness, and what loads next.

Pure functions of the controller's knowledge; its state machine acts on their answers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ..model.tier_choice import auto_id
from .assignment import REMEDY

DEADLY = 2  # deaths of workers while loading it, after which it is given up


class Conflict(Exception):
    """A conflict with what is served, or is being added; one sentence."""


class Servable(Protocol):
    """The state of an application."""

    deployed: bool
    shown: bool  # published; an addition waits for that
    draining: bool  # takes no new requests


S = TypeVar("S", bound=Servable)
_VERSION = re.compile(r"~\d+$")


def version_name(model: str, number: int) -> str:
    """Return the internal name of a version of a model, counted from 0."""
    return f"{model}~{number + 1}" if number else model


def model_of(name: str) -> str:
    """Return what people call the application of this internal name: its model."""
    return _VERSION.sub("", name)


def serving_one(of_model: Iterable[S]) -> S | None:
    """Return, of a model's applications, the one that takes its new requests, or, if there is none, the one that will."""
    found = [s for s in of_model if s.deployed and not s.draining]
    return next((s for s in found if s.shown), found[0] if found else None)


def check_default(model: str, named: str, instead: str) -> None:
    """Raise Conflict if the removal of ``model`` would undo the setting that makes ``named`` the default.

    No conflict if another default is given, ``instead``.
    """
    if named in (model, auto_id(model)) and not instead:
        raise Conflict(
            f"model {named!r} is the one for requests without a model (default_model); name another one with the removal "
            "(default, or --default NAME)"
        )


class Incumbent(NamedTuple):
    """The application that is served, or will be, as a model to which another application is added."""

    name: str
    checkpoint: str
    same: bool  # equal to the addition
    adding: bool  # not in service yet
    replaced: bool  # another one is being added in its place


def replaces(model: str, incumbent: Incumbent | None, replace: bool) -> str | None:
    """Return the application that an addition replaces, or ""; None: it is served already.

    Raises Conflict, LookupError (there is no such model to replace).
    """
    if incumbent is None:
        if replace:
            raise LookupError(f"model {model!r} is not served, so it cannot be replaced")
        return ""
    if incumbent.same:
        return None
    if incumbent.adding:
        raise Conflict(f"model {model!r} is being added from {incumbent.checkpoint}; wait for that")
    check_settled(model, incumbent.replaced)
    if not replace:
        raise Conflict(
            f"model {model!r} is served already, from {incumbent.checkpoint}; replace it (--replace), or choose another name"
        )
    return incumbent.name


def check_settled(model: str, replaced: bool) -> None:
    """Raise Conflict while another version is being added in place of a model's application."""
    if replaced:
        raise Conflict(f"model {model!r} is being replaced; wait for that")


class RouteProgress(NamedTuple):
    """The progress of a planned route of an addition whose workers are all up."""

    whole: bool  # every hop is held
    settled: bool  # its workers have reported their remaining memory since
    rooms: Sequence[tuple[int, int]]  # for each hop: (bytes left to KV, bytes of a page)


def verdict(deaths: int, routes: Sequence[RouteProgress]) -> str | None:
    """Return "" if an addition is whole wherever its workers are up, None if undecided, else why it cannot be.

    deaths: of workers while they loaded it.
    """
    if deaths >= DEADLY:
        return f"{deaths} workers died while they loaded it"
    if not routes or not all(route.whole and route.settled for route in routes):
        return None
    for room, page in (hop for route in routes for hop in route.rooms):
        if room < page:
            return f"it leaves {room} bytes for its sequences, less than one page of {page} bytes; {REMEDY}"
    return ""


def first_missing(lengths: Iterable[int], hops: Sequence[tuple[int, int]], here: Container[int]) -> tuple[int, int] | None:
    """Return the first block that a worker lacks, as depths (first, last exclusive); None: it has all that belong there.

    lengths: components of each block of the chain. hops: ranges that belong on the worker. here: depths that it has.
    """
    first = 0
    for length in lengths:
        last = first + length
        belongs = any(a <= first and last <= b for a, b in hops)
        if belongs and not all(depth in here for depth in range(first, last)):
            return first, last
        first = last
    return None

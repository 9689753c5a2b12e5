"""The base model of an adapter: the one that its configuration names, or the only one available.

Pure functions of names and paths; they never choose between several models that fit equally well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_CACHED = re.compile(r"models--(.+?)--(.+?)/snapshots/[^/]+/?$")  # a folder in the hub's cache


class WholeModel(NamedTuple):
    """A whole model that an adapter can be read over."""

    model: str  # its id
    checkpoint: str  # its folder with every link resolved, or its hub id
    served: bool = True  # served under that id; else only adapters over it are served
    family: str = ""  # a lower tier: id of its family, which is the top tier


class AmbiguousBase(Exception):
    """Several models may be an adapter's base. ``why`` names them and continues after "X is an adapter; "."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def choose_base(trained_on: str, wholes: Iterable[WholeModel]) -> WholeModel | None:
    """Return the model that an adapter trained on ``trained_on`` (a path, a hub id or "") belongs to; None: there is none.

    A matching id comes before a path or hub id, and that before its last name. Two ids of one checkpoint are one model; a
    served model comes before a removed one. A lower tier of a family is chosen only by its id. Raises AmbiguousBase if
    several models match equally well, or if none of several matches.
    """
    distinct: dict[str, WholeModel] = {}
    matching: dict[int, dict[str, WholeModel]] = {}
    for whole in wholes:
        if whole.family and whole.model != trained_on:
            continue
        distinct.setdefault(whole.checkpoint, whole)
        if nearness := _nearness(trained_on, whole):
            matching.setdefault(nearness, {}).setdefault(whole.checkpoint, whole)
    best = matching[max(matching)] if matching else distinct
    if matching and len(here := {checkpoint: one for checkpoint, one in best.items() if one.served}) == 1:
        best = here
    if len(best) > 1:
        raise AmbiguousBase(_sentence(trained_on, [*best.values()], some_match=bool(matching)))
    return next(iter(best.values()), None)


def is_named(trained_on: str, whole: WholeModel) -> bool:
    """Return whether an adapter trained on ``trained_on`` names that model, and was not put on it as the only one."""
    return _nearness(trained_on, whole) > 0


def named_base(name: str, wholes: Iterable[WholeModel]) -> WholeModel | None:
    """Return the model of that id, a served one before a removed one; None: there is none."""
    found = [one for one in wholes if one.model == name]
    return next((one for one in found if one.served), found[0] if found else None)


def is_same(path: str, whole: WholeModel) -> bool:
    """Return whether a model was read from that folder, or from another revision of its model in the hub's cache."""
    return bool(_names(path) & _names(whole.checkpoint))


def named_by_path(path: str, wholes: Iterable[WholeModel]) -> WholeModel | None:
    """Return the served model that was read from that folder; None: there is none."""
    return next((one for one in wholes if one.served and is_same(path, one)), None)


def shown_base(model: str, checkpoint: str, served: WholeModel | None) -> str:
    """Return the base shown for an adapter that was put on ``model`` when that was ``checkpoint`` ("": not known).

    served: the present model of that id. If it has another checkpoint, the folder is shown, as the id would be wrong.
    """
    if served is None or not checkpoint or served.checkpoint == checkpoint:
        return model or checkpoint
    return checkpoint


def _nearness(trained_on: str, whole: WholeModel) -> int:
    """Return how well a name fits a model; 0: not at all."""
    if not trained_on:
        return 0
    if trained_on == whole.model:
        return 3
    if _names(trained_on) & _names(whole.checkpoint):
        return 2
    named = {_last(name) for name in _names(trained_on)}
    return int(bool(named & {_last(name) for name in (*_names(whole.checkpoint), whole.model)}))


def _names(text: str) -> set[str]:
    """Return a path or hub id as it may be written elsewhere: without a revision, and for the hub's cache as the id."""
    plain = text.rstrip("/")
    cached = _CACHED.search(plain)
    return {plain, f"{cached[1]}/{cached[2]}"} if cached else {plain, plain.partition("@")[0]}


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _sentence(trained_on: str, found: list[WholeModel], *, some_match: bool) -> str:
    names = ", ".join(
        one.model if one.served else f"{one.model} ({one.checkpoint}, removed, but adapters of it are served)"
        for one in found
    )
    if some_match:
        listed = ", ".join(f"{one.model} ({one.checkpoint})" for one in found)
        return f"{len(found)} models may be its base {trained_on!r} ({listed})"
    says = f"names {trained_on!r}, which is none of them" if trained_on else "names none"
    return f"{len(found)} models may be its base ({names}), and its own configuration {says}"

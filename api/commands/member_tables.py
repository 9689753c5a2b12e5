"""Tables of members in ``ps`` and ``top``: where they are; gateways and predictors once one has joined from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .output import FittedTable

View = Mapping[str, Any]


def whereabouts(workers: Sequence[View]) -> dict[str, Callable[[View], str]]:
    """Return columns that say where members are, once some have joined from elsewhere: what is shown, by heading."""
    columns: dict[str, Callable[[View], str]] = {}
    if any(one.get("joined") for one in workers) or len({one.get("host") for one in workers}) > 1:
        columns["HOST"] = lambda one: one["host"] or "-"
    if any(one.get("labels") for one in workers):
        columns["LABELS"] = lambda one: ", ".join(f"{name}={value}" for name, value in one["labels"].items()) or "-"
    return columns


def _gateways(view: View) -> list[FittedTable]:
    """Return the table of gateways, once one has joined from elsewhere."""
    gateways = view.get("gateways", ())
    if not any(one["joined"] for one in gateways):
        return []
    where = whereabouts(gateways)
    rows = [
        (one["id"], one["state"], *(shown(one) for shown in where.values()), one["address"] or "-", str(one["requests"]))
        for one in gateways
    ]
    return [FittedTable(("GATEWAY", "STATE", *where, "ADDRESS", "REQUESTS"), rows, numbers=1)]


def _predictors(view: View) -> list[FittedTable]:
    """Return the table of processes of predictors, once one has joined from elsewhere."""
    predictors = view.get("predictors", ())
    if not any(one["joined"] for one in predictors):
        return []
    where = whereabouts(predictors)
    rows = [
        (one["id"], one["state"], *(shown(one) for shown in where.values()), ", ".join(one["predicts"]) or "-")
        for one in predictors
    ]
    return [FittedTable(("PREDICTORS", "STATE", *where, "PREDICT"), rows, numbers=0)]


def member_tables(view: View) -> list[FittedTable]:
    """Return the tables of gateways and of processes of predictors, each once one has joined from elsewhere."""
    return [*_gateways(view), *_predictors(view)]

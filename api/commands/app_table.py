"""The table of ``blockwright apps``, from the body of ``GET /admin/apps``: a summary first, then every model."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group

from .output import FittedTable
from .screen import Screenful
from .tables import default_line

_ALIKE = 4  # least adapters that share a line
Row = tuple[str, str, str, str]  # name, state, base, checkpoint


def app_tables(answer: Mapping[str, Any]) -> Screenful:
    """Return the models by state. Idle adapters of one folder share a line on a screen that is too short."""
    found: Mapping[str, Mapping[str, Any]] = answer["applications"]
    rows = [(name, one["state"], one["base"] or "-", one["checkpoint"]) for name, one in found.items()]
    states = Counter(state for _, state, _, _ in rows)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    summary = f"{len(rows)} model{'s' * (len(rows) != 1)}: {counted}"
    head = Group(summary, default_line(answer.get("default", ""), found), "")
    single, lines = _grouped(rows)
    return Screenful(head, _table(rows), Group(_table(single), *lines) if lines else None)


def _table(rows: Sequence[Row]) -> FittedTable:
    return FittedTable(("APPLICATION", "STATE", "BASE", "CHECKPOINT"), rows, numbers=0, least=("BASE", "STATE"))


def _grouped(rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
    """Return the single models, and a line for adapters that differ in their name alone, which their folders have, too."""

    def kind(row: Row) -> tuple[str, str, str]:
        name, state, base, checkpoint = row
        folder, last = os.path.split(checkpoint)
        return (state, base, folder) if base != "-" and last == name else (name, "", "")

    single, lines = list[Row](), list[str]()
    for (state, base, folder), group in itertools.groupby(rows, kind):
        alike = list(group)
        if len(alike) < _ALIKE:
            single += alike
        else:
            lines.append(f"{alike[0][0]} ... {alike[-1][0]}: {len(alike)} adapters of {base}; {state}; in {folder}")
    return single, lines

"""Differences between two stored results beyond noise.

Noise is the spread of the runs: a figure has changed if the ranges of its runs, then and now, are apart by more than
``FLOOR`` of it. The floor is for figures of a single run, which have no spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOOR = 0.05
Row = Mapping[str, Any]
Document = Mapping[str, Any]


def changes(before: Document, now: Document) -> list[str]:
    """A line for each figure that changed, is new or is gone; first what makes the two hard to compare."""
    name = now["benchmark"]
    old = keyed(before)
    new = keyed(now)
    found = [
        f"{name}: {what} differs: {before[what]} then, {now[what]} now"
        for what in ("machine", "settings")
        if before[what] != now[what]
    ]
    for key, row in new.items():
        if key not in old:
            found.append(f"{name} {label(key)}: {row['value']:.4g}, not measured before")
        elif moved(old[key], row):
            found.append(f"{name} {label(key)}: {shown(old[key])} -> {shown(row)}{times(old[key], row)}")
    return found + [
        f"{name} {label(key)}: {row['value']:.4g} before, not measured now" for key, row in old.items() if key not in new
    ]


def keyed(document: Document) -> dict[tuple[str, str, str], Row]:
    return {(row["case"], row["metric"], row["subject"]): row for row in document["rows"]}


def moved(before: Row, now: Row) -> bool:
    margin = FLOOR * abs(before["value"])
    return bool(now["low"] > before["high"] + margin or now["high"] < before["low"] - margin)


def label(key: tuple[str, str, str]) -> str:
    return " ".join(key)


def shown(row: Row) -> str:
    return f"{row['value']:.4g} ({row['low']:.4g} to {row['high']:.4g})"


def times(before: Row, now: Row) -> str:
    return f", {now['value'] / before['value']:.2f} times" if before["value"] else ""

"""The output of ``blockwright bench serve``: a line for each figure, a column for each level of load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..load.figures import METRICS
from .output import FittedTable

_COUNTS = (("succeeded", "requests"), ("failed", "failed"))
_AMOUNTS = (
    ("duration, s", "seconds"),
    ("requests/s", "requests_per_s"),
    ("prompt tokens/s", "prompt_tokens_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
)
_SHARES = ("mean", "p50", "p99")
_WIDEST = 11  # characters of a level's column, including the gap


def figures_tables(levels: Sequence[Mapping[str, Any]], width: int) -> Iterator[FittedTable]:
    """Yield tables with the levels side by side, as many as fit into ``width`` characters; the others follow below."""
    names = [name for name, _ in _figures(levels[0])]
    fit = max(1, (width - max(map(len, names))) // _WIDEST)
    for first in range(0, len(levels), fit):
        shown = [dict(_figures(level)) for level in levels[first : first + fit]]
        rows = [(name, *(level[name] for level in shown)) for name in names]
        yield FittedTable(rows[0], rows[1:], numbers=len(shown))


def _figures(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a level, with times in milliseconds."""
    yield "concurrency", "-" if one["concurrency"] is None else str(one["concurrency"])
    yield "arrival", one["arrival"]
    yield "requests/s asked", "-" if one["request_rate"] is None else f"{one['request_rate']:g}"
    yield from ((text, str(one[name])) for text, name in _COUNTS)
    yield from ((text, f"{one[name]:,.1f}") for text, name in _AMOUNTS)
    for name in METRICS:
        for part in _SHARES:
            yield f"{name.upper()} {part}, ms", "-" if one[name] is None else f"{one[name][part] * 1000:,.1f}"

"""A stored result for the page's generators: its figures as text, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness import OURS, Report

NONE = "–"  # a figure that no run has


class Result:
    """One stored file."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._rows = {(row["case"], row["metric"], row["subject"]): row for row in document["rows"]}

    def value(self, case: str, metric: str, subject: str = OURS) -> float | None:
        row = self._rows.get((case, metric, subject))
        return None if row is None else float(row["value"])

    def text(self, case: str, metric: str, subject: str = OURS, scale: float = 1.0) -> str:
        value = self.value(case, metric, subject)
        return NONE if value is None else number(scale * value)

    def spread(self, case: str, metric: str, subject: str = OURS) -> str:
        """With the smallest and largest run."""
        row = self._rows.get((case, metric, subject))
        return NONE if row is None else f"{number(row['value'])} ({number(row['low'])} to {number(row['high'])})"

    def ratio(self, case: str, metric: str, peer: str) -> str:
        """Ours by the peer's."""
        ours, theirs = self.value(case, metric), self.value(case, metric, peer)
        return NONE if ours is None or not theirs else f"{ours / theirs:.2f}"

    def percent(self, case: str, metric: str) -> str:
        value = self.value(case, metric)
        return NONE if value is None else f"{100 * value:.0f} %"

    def cases(self, metric: str) -> list[str]:
        return [case for case, found, subject in self._rows if found == metric and subject == OURS]

    def report(self) -> Report:
        """For judging bars: of every series its median."""
        samples = {key: [row["value"]] for key, row in self._rows.items()}
        return Report(self.document["benchmark"], {}, (), samples)


def number(value: float) -> str:
    """Three digits that count."""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))

"""The tables of docs/metrics.md: a row is what a scrape says of a family, so that one can be held against the other."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.core import Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def row(family: Metric) -> str:
    """Of a family that has samples."""
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"| `{name}` | {family.type} | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |"


def rows(mark: str) -> list[str]:
    """Those of the page whose metric's name has ``mark``, sorted."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return sorted(line for line in lines if mark in line.split("`")[1])

"""bench serve on 80 columns: a column for each level of load."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.bench import figures_tables

SPREAD = {"mean": 0.0125, "p50": 0.01, "p90": 0.015, "p99": 12.5}


def level(concurrency: int | None) -> dict[str, Any]:
    times = dict.fromkeys(("ttft", "itl", "tpot", "e2e"), SPREAD)
    rates = {"requests_per_s": 1.25, "prompt_tokens_per_s": 1000.0, "output_tokens_per_s": 160.0}
    head = {"concurrency": concurrency, "arrival": "at once", "request_rate": None, "requests": 31, "failed": 1}
    return {**head, "seconds": 25.0, **rates, **times}


def lines(levels: list[dict[str, Any]], width: int = 80) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    for table in figures_tables(levels, width):
        paper.print(table)
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_every_figure_is_a_line() -> None:
    messages = lines([level(1), level(16) | {"itl": None}])
    assert max(map(len, messages)) <= 80
    found = {line[:17].strip(): line[17:].split() for line in messages}
    assert found["concurrency"] == ["1", "16"]
    assert found["succeeded"] == ["31", "31"]
    assert found["failed"] == ["1", "1"]
    assert found["output tokens/s"] == ["160.0", "160.0"]
    assert found["TTFT p99, ms"] == ["12,500.0", "12,500.0"]
    assert found["ITL mean, ms"] == ["12.5", "-"]


def test_more_levels_than_fit_go_below() -> None:
    messages = lines([level(1 << n) for n in range(9)])
    assert max(map(len, messages)) <= 80
    heads = [line.split()[1:] for line in messages if line.startswith("concurrency")]
    assert len(heads) == 2
    assert [name for head in heads for name in head] == [str(1 << n) for n in range(9)]

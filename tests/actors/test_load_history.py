"""How busy a process was: rows of three widths, bounded, added up over processes."""

from __future__ import annotations

import pytest

from blockwright.actors.load_history import (
    RINGS,
    LoadHistory,
    LoadRow,
    Memory,
    memory_of,
    merged,
    quantile,
    step_of,
    windows,
)
from blockwright.tests.claims import claim

BEGAN = 1_700_000_040  # a whole minute


def played(seconds: int, history: LoadHistory | None = None) -> LoadHistory:
    """A look each second: so many running, ten tokens a second, a first token in the second bucket each second."""
    history = history or LoadHistory()
    for n in range(seconds + 1):
        history.record(BEGAN + n, running=n, waiting=1, generated=10 * n, first=[0, n, 0])
    return history


@claim("The server keeps a day of load history in bounded memory", of="observability")
def test_rows_of_a_second_of_ten_and_of_a_minute() -> None:
    history = played(125)
    seconds = history.rows(1)
    assert [row.at for row in seconds] == [BEGAN + n for n in range(1, 126)], "the first look has nothing to compare with"
    assert {(row.rate, row.waiting, tuple(row.first)) for row in seconds} == {(10.0, 1.0, (0, 1, 0))}
    tens = history.rows(10)
    assert [(row.at - BEGAN, row.samples) for row in tens[:2]] == [(0, 9), (10, 10)]
    assert (tens[1].running, tens[1].rate, tens[1].first) == (14.5, 10.0, [0, 10, 0])
    minutes = history.rows(60)
    assert [(row.at - BEGAN, row.samples) for row in minutes] == [(0, 59), (60, 60), (120, 6)], "the last is not full yet"
    assert [row.at for row in history.rows(1, BEGAN + 124)] == [BEGAN + 124, BEGAN + 125]


@claim("The server keeps a day of load history in bounded memory", of="observability")
def test_it_is_bounded() -> None:
    history = played(RINGS[0][1] + 100)
    assert len(history.rows(1)) == RINGS[0][1]
    for n in range(0, 60 * (RINGS[2][1] + 5), 30):
        history.record(BEGAN + 1000 + n, 0, 0, 0, [0, 0, 0])
    assert [len(history.rows(step)) for step, _ in RINGS] == [size for _, size in RINGS]
    assert max(step * size for step, size in RINGS) == 86400


def test_a_gap_a_clock_that_is_set_back_and_counts_that_fall() -> None:
    history = played(5)
    history.record(BEGAN + 15, 0, 0, 150, [0, 15, 0])
    assert (history.rows(1)[-1].at, history.rows(1)[-1].rate) == (BEGAN + 15, 10.0), "over the whole gap"
    before = history.rows(1)
    history.record(BEGAN + 3, 9, 9, 999, [9, 99, 9])
    assert history.rows(1) == before
    history.record(BEGAN + 16, 0, 0, 20, [0, 1, 0])  # a model that was removed took its counts along
    assert (history.rows(1)[-1].rate, history.rows(1)[-1].first) == (0.0, [0, 0, 0])


def test_processes_are_added_up_and_memory_is_not() -> None:
    memory = Memory(parameters=5.0)
    a = [LoadRow(10, 1, 2.0, 1.0, 10.0, [1, 0]), LoadRow(11, 1, 2.0, 0.0, 10.0, [1, 0], memory)]
    b = [LoadRow(11, 1, 3.0, 4.0, 5.0, [0, 2], memory), LoadRow(12, 1, 1.0, 0.0, 0.0, [0, 0])]
    assert merged([a, b]) == [a[0], LoadRow(11, 1, 5.0, 4.0, 15.0, [1, 2], memory), b[1]]


@pytest.mark.parametrize(("seconds", "step"), [(1, 1), (120, 1), (180, 1), (181, 10), (3600, 10), (86400, 60), (10**9, 60)])
def test_the_finest_rows_that_reach_so_far(seconds: float, step: int) -> None:
    assert step_of(seconds) == step


def test_quantiles_lie_in_their_bucket_in_proportion() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile([0, 0, 0, 0], bounds, 0.5) is None
    assert quantile([0, 4, 0, 0], bounds, 0.5) == 1.5
    assert quantile([2, 0, 2, 0], bounds, 0.95) == pytest.approx(2 + 2 * 0.9)
    assert quantile([0, 0, 0, 3], bounds, 0.5) == 4.0
    rows = [LoadRow(n, 1, 0.0, 0.0, 0.0, [n, 1]) for n in range(4)]
    assert windows(rows, 3) == [[0, 1], [1, 2], [3, 3], [6, 3]]


def test_memory_of_all_workers_with_the_largest_tenants() -> None:
    assert memory_of({"workers": []}) is None
    assert memory_of({}) is None
    of = {"parameters": 10, "kv": 2, "cached": 1, "free": 7, "budget": 20}
    workers = [{"memory": of, "kv_by_tenant": {"a": 5, "b": 1}}, {"memory": of, "kv_by_tenant": {"c": 3, "a": 1}}, {}]
    assert memory_of({"workers": workers}, 2) == Memory(20, 4, 2, 14, {"a": 6, "c": 3, "others": 1})

"""All threads or one, by what calls take; seconds are told, nothing is timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.policies.plan.thread_team import MOST_THREADS, MOST_TOKENS, TRIES, ThreadTeam

Seconds = Callable[[int], float]  # by threads


def play(team: ThreadTeam, calls: int, seconds: Seconds, tokens: int = 1) -> list[int]:
    """The threads of so many calls."""
    used = []
    for _ in range(calls):
        used.append(team.choose(tokens))
        team.took(tokens, used[-1], seconds(used[-1]))
    return used


def test_a_worker_of_one_thread_has_no_choice() -> None:
    assert play(ThreadTeam(1), 100, lambda threads: 1.0) == [1] * 100


@pytest.mark.parametrize(("threads", "tokens"), [(MOST_THREADS + 1, 1), (2, MOST_TOKENS + 1)])
def test_many_threads_and_large_calls_have_none_either(threads: int, tokens: int) -> None:
    assert play(ThreadTeam(threads), 100, lambda threads: 1.0, tokens) == [threads] * 100


def test_all_threads_begin_and_one_is_tried() -> None:
    used = play(ThreadTeam(2), 2 * TRIES + 1, lambda threads: 1.2 / threads**0.2)
    assert used == [2] * TRIES + [1] * TRIES + [2]


def test_one_call_is_enough_where_one_thread_is_far_too_slow() -> None:
    assert play(ThreadTeam(4), TRIES + 50, lambda threads: 1.0 / threads).count(1) == 1


@pytest.mark.parametrize(("ratio", "better"), [(0.5, 4), (0.97, 4), (0.99, 1), (1.0, 1), (1.3, 1)])
def test_what_is_faster_is_used(ratio: float, better: int) -> None:
    """``ratio``: seconds with all threads by those with one. Equally fast, the other cores are left to others."""
    used = play(ThreadTeam(4), 4000, lambda threads: 1.0 if threads == 1 else ratio)
    assert used[2 * TRIES :].count(better) / len(used[2 * TRIES :]) > 0.85


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8, 0.95, 1.05, 1.5, 5.0])
def test_trying_costs_half_a_percent(ratio: float) -> None:
    def seconds(threads: int) -> float:
        return 1.0 if threads == 1 else ratio

    used = play(ThreadTeam(2), 20_000, seconds)[2 * TRIES :]
    lost = sum(map(seconds, used)) / len(used) / min(1.0, ratio) - 1.0
    assert lost <= 0.0065


def test_a_machine_that_becomes_busy_is_noticed_soon() -> None:
    """A second thread that was worth it holds the first one up, and then is worth it again."""
    team, busy = ThreadTeam(2), False

    def seconds(threads: int) -> float:
        return 1.0 if threads == 1 else 1.2 if busy else 0.7

    play(team, 2000, seconds)
    busy = True
    assert play(team, 100, seconds)[-10:] == [1] * 10
    busy = False
    assert play(team, 1000, seconds)[-100:].count(2) >= 90


def test_each_size_has_its_own() -> None:
    team = ThreadTeam(2)
    play(team, 500, lambda threads: float(threads), tokens=1)
    play(team, 500, lambda threads: 1.0 / threads, tokens=8)
    assert (team.choose(1), team.choose(8), team.choose(2)) == (1, 2, 2)

"""Turns of batches among accounts, and tries again."""

from __future__ import annotations

import random
from collections import Counter

from blockwright.policies.offline.batch_turns import LONGEST, PREPARED, RETRY, again, due, next_to_prepare, next_to_run

WAITING = [("b1", "ann"), ("b2", "ann"), ("b3", "bob"), ("b4", "eve")]


def test_of_each_account_the_oldest_runs_and_no_more_than_may() -> None:
    assert next_to_run(WAITING, [], 4) == ["b1", "b3", "b4"]
    assert next_to_run(WAITING, [], 2) == ["b1", "b3"]
    assert next_to_run(WAITING, ["ann"], 2) == ["b3"]
    assert next_to_run(WAITING, ["x", "y"], 2) == []
    assert next_to_run(WAITING, ["x", "x", "x"], 2) == [], "more run than may: the setting was another"


def test_not_many_are_ahead_of_their_turn() -> None:
    assert next_to_prepare([(f"a{i}", "ann") for i in range(9)], [], 4) == ["a0", "a1"]
    assert next_to_prepare(WAITING, ["ann"], 1) == ["b1"]
    assert next_to_prepare(WAITING, ["ann", "ann"], 2) == ["b3", "b4"]
    assert next_to_prepare(WAITING, ["x", "x", "y"], 1) == []


def test_whatever_waits_has_its_turn_and_nobody_has_two() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        limit = chance.randint(1, 4)
        running = dict[str, str]()
        ready = dict[str, str]()
        queued = {f"b{i}": chance.choice("abc") for i in range(chance.randint(1, 20))}
        rounds = 0
        while queued or ready or running:
            for batch in next_to_prepare(queued.items(), [*running.values(), *ready.values()], limit):
                ready[batch] = queued.pop(batch)
            for batch in next_to_run(ready.items(), [*running.values()], limit):
                running[batch] = ready.pop(batch)
            assert len(running) <= limit
            assert max(Counter(running.values()).values()) == 1
            assert len(running) + len(ready) <= PREPARED * limit
            del running[chance.choice(list(running))]
            rounds += 1
            assert rounds <= 20, "nobody waits for ever"


def test_tries_come_later_and_later_up_to_a_bound() -> None:
    assert [again(tries, 100.0) - 100.0 for tries in range(6)] == [RETRY, 2.0, 4.0, LONGEST, LONGEST, LONGEST]
    assert due(None, 0.0)
    assert [due(104.0, now) for now in (100.0, 103.9, 104.0, 200.0)] == [False, False, True, True]
    assert due(104.0, 104.0 - LONGEST - 0.1), "the clock was put back"

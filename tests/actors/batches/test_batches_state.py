"""When batches are checked, run, stopped and written."""

from __future__ import annotations

import random
from dataclasses import replace

from blockwright.actors.batches.messages import (
    BatchChecked,
    BatchEffect,
    BatchEnded,
    BatchesSeen,
    BatchEvent,
    BatchStuck,
    BatchWritten,
    LoadBatch,
    RunBatch,
    StopBatch,
    WriteBatch,
)
from blockwright.actors.batches.port import BatchEnding, OpenBatch
from blockwright.actors.batches.state import BatchesState, BatchStage
from blockwright.policies.offline.batch_turns import RETRY

CANCEL = BatchEnding.CANCELLED


def batch(id: str, account: str = "", ending: BatchEnding | None = None, expires_at: float = 1000.0) -> OpenBatch:
    return OpenBatch(id=id, account=account, ending=ending, expires_at=expires_at)


def test_the_way_of_a_batch() -> None:
    state = BatchesState(4)
    assert state.handle(BatchesSeen((batch("a"),)), 0) == [LoadBatch("a")]
    assert state.handle(BatchesSeen((batch("a"),)), 1) == []
    assert state.handle(BatchChecked("a"), 2) == [RunBatch("a")]
    assert state.handle(BatchesSeen((batch("a"),)), 3) == []
    assert state.handle(BatchEnded("a"), 4) == [WriteBatch("a", BatchEnding.COMPLETED)]
    assert state.handle(BatchWritten("a"), 5) == []
    assert state.works == {}


def test_of_each_account_the_oldest_runs_and_so_many_at_a_time() -> None:
    state = BatchesState(2)
    state.handle(BatchesSeen((batch("a1", "a"), batch("a2", "a"), batch("b", "b"), batch("c", "c"))), 0)
    assert state.handle(BatchChecked("a2"), 0) == [RunBatch("a2")], "who waits for nothing is not kept"
    assert state.handle(BatchChecked("a1"), 0) == []
    assert state.handle(BatchChecked("b"), 0) == [RunBatch("b")]
    assert state.handle(BatchChecked("c"), 0) == []
    assert state.handle(BatchEnded("a2"), 0) == [WriteBatch("a2", BatchEnding.COMPLETED), RunBatch("a1")]
    assert state.handle(BatchEnded("b"), 0) == [WriteBatch("b", BatchEnding.COMPLETED), RunBatch("c")]


def test_cancel_and_expiry_stop_what_runs_and_keep_what_is_done() -> None:
    for late, now, ending in (
        (batch("a", ending=CANCEL), 0.0, BatchEnding.CANCELLED),
        (batch("a"), 1000.0, BatchEnding.EXPIRED),
    ):
        state = BatchesState(4)
        state.handle(BatchesSeen((batch("a"),)), 0)
        state.handle(BatchChecked("a"), 0)
        assert state.handle(BatchesSeen((late,)), now) == [StopBatch("a")]
        assert state.handle(BatchesSeen((late,)), now) == []
        assert state.handle(BatchEnded("a"), now) == [WriteBatch("a", ending)]


def test_what_is_not_running_is_written_at_once() -> None:
    state = BatchesState(1)
    state.handle(BatchesSeen((batch("a"), batch("b", "b"))), 0)
    state.handle(BatchChecked("a"), 0)
    state.handle(BatchChecked("b"), 0)
    assert state.handle(BatchesSeen((batch("b", "b", CANCEL),)), 0) == [WriteBatch("b", BatchEnding.CANCELLED)]


def test_after_a_restart_it_goes_on_where_the_store_says() -> None:
    state = BatchesState(4)
    seen = (batch("a"), batch("b", ending=CANCEL), batch("c", ending=BatchEnding.COMPLETED))
    late = batch("d", expires_at=5)
    assert state.handle(BatchesSeen((*seen, late)), 6) == [
        WriteBatch("b", BatchEnding.CANCELLED),
        WriteBatch("c", BatchEnding.COMPLETED),
        WriteBatch("d", BatchEnding.EXPIRED),
        LoadBatch("a"),
    ]


def test_few_are_checked_ahead_of_their_turn() -> None:
    """Each holds its prompts and an open file: a thousand batches are not."""
    state = BatchesState(2)
    many = tuple(batch(f"a{i}", "a") for i in range(1000))
    others = tuple(batch(f"{name}", name) for name in "bcd")
    loads = state.handle(BatchesSeen((*many, *others)), 0)
    assert loads == [LoadBatch("a0"), LoadBatch("a1"), LoadBatch("b"), LoadBatch("c")]
    assert state.handle(BatchChecked("a1"), 0) == [RunBatch("a1")]
    assert state.handle(BatchEnded("a1"), 0) == [WriteBatch("a1", BatchEnding.COMPLETED), LoadBatch("a2")]
    assert state.handle(BatchEnded("c", failed=True), 0) == [LoadBatch("d")]


def test_what_cannot_be_checked_keeps_nobody_from_it() -> None:
    """No model is there that two batches ask."""
    state = BatchesState(1)
    assert state.handle(BatchesSeen((batch("a"), batch("b"), batch("c"))), 0) == [LoadBatch("a"), LoadBatch("b")]
    assert state.handle(BatchStuck("a"), 0) == [LoadBatch("c")]
    assert state.handle(BatchChecked("c"), 0) == [RunBatch("c")]


def test_a_clock_that_is_put_back_keeps_nobody_waiting() -> None:
    state = BatchesState(1)
    state.handle(BatchesSeen((batch("a", expires_at=1e9),)), 1e6)
    state.handle(BatchStuck("a"), 1e6)
    assert state.handle(BatchesSeen(()), 0) == [LoadBatch("a")]


def test_a_batch_that_fails_as_a_whole_is_done_with() -> None:
    state = BatchesState(4)
    state.handle(BatchesSeen((batch("a"),)), 0)
    assert state.handle(BatchEnded("a", failed=True), 0) == []
    assert state.works == {}


def test_what_could_not_be_done_is_tried_again() -> None:
    state = BatchesState(4)
    state.handle(BatchesSeen((batch("a"),)), 0)
    assert state.handle(BatchStuck("a"), 0) == []
    assert state.handle(BatchesSeen(()), RETRY / 2) == []
    assert state.handle(BatchesSeen(()), RETRY) == [LoadBatch("a")]
    state.handle(BatchChecked("a"), RETRY)
    assert state.handle(BatchStuck("a"), 2 * RETRY) == [], "what ran is looked at anew: the store knows what is done"
    assert state.handle(BatchesSeen(()), 3 * RETRY) == [], "each pause is twice as long as the one before"
    assert state.handle(BatchesSeen(()), 4 * RETRY) == [LoadBatch("a")]
    state.handle(BatchChecked("a"), 4 * RETRY)
    state.handle(BatchEnded("a"), 4 * RETRY)
    state.handle(BatchStuck("a"), 4 * RETRY)
    assert state.handle(BatchesSeen(()), 8 * RETRY) == [WriteBatch("a", BatchEnding.COMPLETED)]
    state.handle(BatchStuck("a"), 8 * RETRY)
    assert state.handle(BatchesSeen((batch("a", ending=CANCEL),)), 12 * RETRY) == []


def test_random_walks_end_with_every_batch_written_once() -> None:
    """Whatever comes in whatever order: what was asked for is answered, and nothing runs that was stopped."""
    for seed in range(300):
        drawn = random.Random(seed)
        state, now = BatchesState(drawn.choice((1, 2, 3))), 0.0
        store = {f"b{i}": batch(f"b{i}", drawn.choice("xy"), None, drawn.choice((5.0, 1000.0))) for i in range(5)}
        asked: dict[str, BatchEffect] = {}
        written: set[str] = set()
        while store:
            now += drawn.random()
            event: BatchEvent = BatchesSeen(tuple(store.values()))
            if asked and drawn.random() < 0.7:
                id = drawn.choice(sorted(asked))
                effect = asked.pop(id)
                event = BatchStuck(id) if drawn.random() < 0.2 else _done(effect)
                if isinstance(event, BatchWritten):
                    written.add(id)
                    del store[id]
            elif drawn.random() < 0.1:
                id = drawn.choice(sorted(store))
                store[id] = replace(store[id], ending=CANCEL)
            for effect in state.handle(event, now):
                if isinstance(effect, StopBatch):
                    assert isinstance(asked[effect.batch], RunBatch | LoadBatch)
                    asked[effect.batch] = effect
                else:
                    assert effect.batch not in asked, "one thing after the other"
                    asked[effect.batch] = effect
            running = [work for work in state.works.values() if work.stage in (BatchStage.RUNNING, BatchStage.STOPPING)]
            accounts = [work.batch.account for work in running if isinstance(asked.get(work.batch.id), RunBatch)]
            assert len(accounts) == len(set(accounts))
        assert (len(written), state.works) == (5, {})


def _done(effect: BatchEffect) -> BatchEvent:
    match effect:
        case LoadBatch(id):
            return BatchChecked(id)
        case WriteBatch(id, _):
            return BatchWritten(id)
        case RunBatch(id) | StopBatch(id):
            return BatchEnded(id)

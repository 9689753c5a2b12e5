"""When batches are checked, run, stopped and written."""

from __future__ import annotations

import random
from dataclasses import replace

from blockwright.actors.batches.messages import (
    BatchEffect,
    BatchEvent,
    Checked,
    Ended,
    LoadBatch,
    RunBatch,
    Seen,
    StopBatch,
    Stuck,
    WriteBatch,
    Written,
)
from blockwright.actors.batches.port import OpenBatch, Status
from blockwright.actors.batches.state import RETRY, BatchesState, Stage

VALID, CANCEL = Status.VALIDATING, Status.CANCELLING


def batch(id: str, account: str = "", status: Status = VALID, expires_at: float = 1000.0) -> OpenBatch:
    return OpenBatch(id=id, account=account, status=status, expires_at=expires_at)


def test_the_way_of_a_batch() -> None:
    state = BatchesState(4)
    assert state.handle(Seen((batch("a"),)), 0) == [LoadBatch("a")]
    assert state.handle(Seen((batch("a"),)), 1) == []
    assert state.handle(Checked("a"), 2) == [RunBatch("a")]
    assert state.handle(Seen((batch("a", status=Status.IN_PROGRESS),)), 3) == []
    assert state.handle(Ended("a"), 4) == [WriteBatch("a", Status.COMPLETED)]
    assert state.handle(Written("a"), 5) == []
    assert state.works == {}


def test_of_each_account_the_oldest_runs_and_so_many_at_a_time() -> None:
    state = BatchesState(2)
    state.handle(Seen((batch("a1", "a"), batch("a2", "a"), batch("b", "b"), batch("c", "c"))), 0)
    assert state.handle(Checked("a2"), 0) == [RunBatch("a2")], "who waits for nothing is not kept"
    assert state.handle(Checked("a1"), 0) == []
    assert state.handle(Checked("b"), 0) == [RunBatch("b")]
    assert state.handle(Checked("c"), 0) == []
    assert state.handle(Ended("a2"), 0) == [WriteBatch("a2", Status.COMPLETED), RunBatch("a1")]
    assert state.handle(Ended("b"), 0) == [WriteBatch("b", Status.COMPLETED), RunBatch("c")]


def test_cancel_and_expiry_stop_what_runs_and_keep_what_is_done() -> None:
    for late, now, ending in ((batch("a", status=CANCEL), 0.0, Status.CANCELLED), (batch("a"), 1000.0, Status.EXPIRED)):
        state = BatchesState(4)
        state.handle(Seen((batch("a"),)), 0)
        state.handle(Checked("a"), 0)
        assert state.handle(Seen((late,)), now) == [StopBatch("a")]
        assert state.handle(Seen((late,)), now) == []
        assert state.handle(Ended("a"), now) == [WriteBatch("a", ending)]


def test_what_is_not_running_is_written_at_once() -> None:
    state = BatchesState(1)
    state.handle(Seen((batch("a"), batch("b", "b"))), 0)
    state.handle(Checked("a"), 0)
    state.handle(Checked("b"), 0)
    assert state.handle(Seen((batch("b", "b", CANCEL),)), 0) == [WriteBatch("b", Status.CANCELLED)]


def test_after_a_restart_it_goes_on_where_the_store_says() -> None:
    state = BatchesState(4)
    seen = (batch("a", status=Status.IN_PROGRESS), batch("b", status=CANCEL), batch("c", status=Status.FINALIZING))
    late = batch("d", expires_at=5)
    assert state.handle(Seen((*seen, late)), 6) == [
        LoadBatch("a"),
        WriteBatch("b", Status.CANCELLED),
        WriteBatch("c", Status.COMPLETED),
        WriteBatch("d", Status.EXPIRED),
    ]


def test_a_batch_that_fails_as_a_whole_is_done_with() -> None:
    state = BatchesState(4)
    state.handle(Seen((batch("a"),)), 0)
    assert state.handle(Ended("a", failed=True), 0) == []
    assert state.works == {}


def test_what_could_not_be_done_is_tried_again() -> None:
    state = BatchesState(4)
    state.handle(Seen((batch("a"),)), 0)
    assert state.handle(Stuck("a"), 0) == []
    assert state.handle(Seen(()), RETRY / 2) == []
    assert state.handle(Seen(()), RETRY) == [LoadBatch("a")]
    state.handle(Checked("a"), RETRY)
    assert state.handle(Stuck("a"), 2 * RETRY) == [], "what ran is looked at anew: the store knows what is done"
    assert state.handle(Seen(()), 3 * RETRY) == [], "each pause is twice as long as the one before"
    assert state.handle(Seen(()), 4 * RETRY) == [LoadBatch("a")]
    state.handle(Checked("a"), 4 * RETRY)
    state.handle(Ended("a"), 4 * RETRY)
    state.handle(Stuck("a"), 4 * RETRY)
    assert state.handle(Seen(()), 8 * RETRY) == [WriteBatch("a", Status.COMPLETED)]
    state.handle(Stuck("a"), 8 * RETRY)
    assert state.handle(Seen((batch("a", status=CANCEL),)), 12 * RETRY) == []


def test_random_walks_end_with_every_batch_written_once() -> None:
    """Whatever comes in whatever order: what was asked for is answered, and nothing runs that was stopped."""
    for seed in range(300):
        drawn = random.Random(seed)
        state, now = BatchesState(drawn.choice((1, 2, 3))), 0.0
        store = {f"b{i}": batch(f"b{i}", drawn.choice("xy"), VALID, drawn.choice((5.0, 1000.0))) for i in range(5)}
        asked: dict[str, BatchEffect] = {}
        written: set[str] = set()
        while store:
            now += drawn.random()
            event: BatchEvent = Seen(tuple(store.values()))
            if asked and drawn.random() < 0.7:
                id = drawn.choice(sorted(asked))
                effect = asked.pop(id)
                event = Stuck(id) if drawn.random() < 0.2 else _done(effect)
                if isinstance(event, Written):
                    written.add(id)
                    del store[id]
            elif drawn.random() < 0.1:
                id = drawn.choice(sorted(store))
                store[id] = replace(store[id], status=CANCEL)
            for effect in state.handle(event, now):
                if isinstance(effect, StopBatch):
                    assert isinstance(asked[effect.batch], RunBatch | LoadBatch)
                    asked[effect.batch] = effect
                else:
                    assert effect.batch not in asked, "one thing after the other"
                    asked[effect.batch] = effect
            running = [work for work in state.works.values() if work.stage in (Stage.RUNNING, Stage.STOPPING)]
            accounts = [work.batch.account for work in running if isinstance(asked.get(work.batch.id), RunBatch)]
            assert len(accounts) == len(set(accounts))
        assert (len(written), state.works) == (5, {})


def _done(effect: BatchEffect) -> BatchEvent:
    match effect:
        case LoadBatch(id):
            return Checked(id)
        case WriteBatch(id, _):
            return Written(id)
        case RunBatch(id) | StopBatch(id):
            return Ended(id)

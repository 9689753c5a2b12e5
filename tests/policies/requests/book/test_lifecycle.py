"""The life of a request: the whole table as a reader sees it, walks over it, and the stages of a gateway's requests."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.requests.book.lifecycle import OUTCOMES, TABLE, WORDS, LifeEvent, LifeStage, following, page
from blockwright.policies.requests.book.messages import End, GatewayTick, HoldAnswered, Unsent
from blockwright.policies.requests.book.record import RequestRecord
from blockwright.policies.requests.book.settlement import RULES
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted, progressed
from blockwright.tests.policies.requests.book.test_moving import Mover, whole
from blockwright.tests.policies.requests.book.test_switching import PIPELINE, REPLICAS, Switched

PAGE = """\
          QUEUED    ASKED     SENT      STREAMING MOVING    PAUSED    RETRIED   HELD
ASK       ASKED     .         .         .         .         .         ASKED     .
PASS      .         RETRIED   .         .         .         .         .         .
SEND      SENT      SENT      .         .         .         .         SENT      .
PLAN      .         .         STREAMING .         .         .         .         .
MOVE      .         .         .         MOVING    .         .         .         .
STAY      .         .         .         .         STREAMING .         .         .
LEAVE     .         .         PAUSED    PAUSED    .         PAUSED    .         .
HAND_OVER .         .         SENT      SENT      SENT      SENT      .         .
REROUTE   .         .         SENT      SENT      .         .         .         .
GIVE_BACK .         .         RETRIED   RETRIED   RETRIED   RETRIED   .         .
LOSE      .         .         RETRIED   RETRIED   RETRIED   RETRIED   .         .
RESTART   .         .         RETRIED   RETRIED   RETRIED   RETRIED   .         .
HOLD      .         .         .         HELD      HELD      .         .         .
GO_UP     .         QUEUED    QUEUED    QUEUED    QUEUED    QUEUED    QUEUED    QUEUED
FINISH    .         .         .         ENDED     ENDED     .         .         ENDED
STOP      ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED
CANCEL    ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED
REFUSE    .         .         ENDED     ENDED     ENDED     ENDED     .         .
FAIL      ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED     ENDED
"""
LEGAL = {(s, e): n for s, events in TABLE.items() for e, n in events.items() if isinstance(n, LifeStage)}


@claim("The life of a request is a table of stages and events; an event that cannot come raises", of="code-and-tests")
def test_the_table_is_the_page_that_a_reader_sees() -> None:
    assert page() == PAGE


def test_each_stage_has_an_entry_for_each_event() -> None:
    for stage in LifeStage:
        assert TABLE[stage].keys() == {*LifeEvent}, stage
        for event, entry in TABLE[stage].items():
            assert isinstance(entry, LifeStage) or entry, f"{stage.name} says nothing about {event.name}"


def test_what_cannot_come_raises_and_says_why() -> None:
    for stage in LifeStage:
        for event in LifeEvent:
            if (stage, event) not in LEGAL:
                with pytest.raises(AssertionError, match=f"^request r is {stage.name}: {event.name} cannot come, since "):
                    following("r", stage, event)


def test_random_walks_visit_every_legal_edge() -> None:
    """They end seldom, so that they come far."""
    random, seen = Random(1), set()
    legal = {stage: [event for event in LifeEvent if (stage, event) in LEGAL] for stage in LifeStage}
    on = {s: [event for event in events if LEGAL[s, event] is not LifeStage.ENDED] for s, events in legal.items()}
    for _ in range(2000):
        stage = LifeStage.QUEUED
        while stage is not LifeStage.ENDED:
            event = random.choice(on[stage] if random.random() < 0.9 else legal[stage])
            seen.add((stage, event))
            stage = following("r", stage, event)
    assert seen == LEGAL.keys()


def test_every_stage_has_a_word_and_every_ending_an_outcome() -> None:
    assert {*LifeStage} - WORDS.keys() == {LifeStage.ENDED}
    assert {event for (_, event), stage in LEGAL.items() if stage is LifeStage.ENDED} == OUTCOMES.keys()


def test_every_claim_that_is_settled_has_a_rule() -> None:
    """All events but those that a request's own record applies while it waits, starts or is copied."""
    own = {LifeEvent.ASK, LifeEvent.PASS, LifeEvent.SEND, LifeEvent.PLAN, LifeEvent.MOVE, LifeEvent.STAY}
    assert RULES.keys() == {*LifeEvent} - own


def stage_of(bench: Bench, request: str = "r") -> str:
    record: RequestRecord = bench.state.parts.active[request]
    return record.stage.name


def test_a_request_passes_its_stages() -> None:
    bench = Bench()
    bench.generate("r", prompt=5, max_tokens=8)
    assert stage_of(bench) == "QUEUED"
    bench = Bench("w0", "w1", asks=True)
    bench.generate("r", prompt=5, max_tokens=8)
    assert stage_of(bench) == "ASKED"
    bench = Mover(whole("w1"))
    assert stage_of(bench) == "SENT"
    bench.decode(4)
    assert stage_of(bench) == "STREAMING"
    (asked,) = bench.move("w1")
    assert stage_of(bench) == "MOVING"
    assert bench.exported("w0", asked.wanted.number, 3) != []
    assert stage_of(bench) == "SENT"
    bench.report("w1", progressed("r", 2, 12, 12))
    assert stage_of(bench) == "STREAMING"
    bench(Unsent("r", 2, "not delivered"))
    assert stage_of(bench) == "SENT", "it was tried again at once, on the other worker"
    record = bench.state.parts.active["r"]
    bench(End("r", stop=True))
    assert (record.stage.name, record.state) == ("ENDED", "finished")


def test_a_move_that_is_given_up_leaves_the_request_where_it_streams() -> None:
    bench = Mover(whole("w1"))
    bench.decode(4)
    bench.move("w1")
    bench.die("w1", back=False)
    assert stage_of(bench) == "STREAMING"
    assert bench.report("w0", emitted("r", 1, 14, [9]))


def test_requests_pause_until_their_pages_have_come_or_are_not_waited_for() -> None:
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    assert {stage_of(bench, request) for request in "abc"} == {"PAUSED"}
    bench(HoldAnswered("a", 2, expects=False, room=False), 1.0)
    assert stage_of(bench, "a") == "PAUSED"
    bench(GatewayTick(), 40.0)
    assert {stage_of(bench, request) for request in "abc"} == {"SENT"}

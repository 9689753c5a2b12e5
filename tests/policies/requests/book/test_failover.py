"""The gateway's rules one by one: failover, suspects, waiting, ends, and the history of a request."""

import pytest

from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.requests.book.messages import (
    CancelAt,
    Closed,
    End,
    Fail,
    GatewayTick,
    HeartbeatReceived,
    Submit,
    Unsent,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.requests.book.settling import KEEP
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation
from blockwright.tests.policies.requests.book.gateway_bench import (
    Bench,
    chain,
    delivered,
    emitted,
    given_back,
    preempted,
    progressed,
    route,
    submits,
)

# failover


def test_a_dead_incarnation_takes_no_number_of_its_successor():
    """Its late report is no report of the new one, whose own first would then count as known and be lost."""
    bench = Bench("w0")
    bench.generate("a", prompt=5)
    bench.report("w0", emitted("a", 1, 5, [10]))
    bench.die("w0")
    late = [bench.report("w0", emitted("a", 1, 6 + i, [11]), incarnation=1, serial=s) for i, s in enumerate((1, 2, 3))]
    assert late == [[], [], []]
    assert bench.report("w0", emitted("a", 2, 6, [11]), incarnation=2) == [delivered("a", 2, 6, [11])]
    assert bench.report("w0", emitted("a", 2, 7, [12]), incarnation=2) == [delivered("a", 2, 7, [12])]


def test_a_dead_incarnation_makes_nobody_ask_its_successor():
    bench = Bench("w0")
    bench.generate("a", prompt=5)
    bench.die("w0")
    for _ in range(3):  # a heartbeat that was on its way
        assert bench(HeartbeatReceived("w0", 1, 7)) == []
    assert bench(HeartbeatReceived("w0", 2, 0)) == []
    assert bench.report("w0", emitted("a", 2, 5, [10]), incarnation=2) == [delivered("a", 2, 5, [10])]


def test_a_preemption_of_the_attempt_before_says_nothing_of_this_one():
    """Its worker had preempted the attempt that it then gave back, and says both late."""
    bench = Bench("w0")
    bench.generate("a", prompt=5)
    bench(Unsent("a", 1, "not delivered"))
    assert submits(bench(GatewayTick(), 5.0)) == [("w0", "a", 2)]
    bench.report("w0", progressed("a", 2, 5), now=5.1)
    bench.report("w0", preempted("a", 1), now=5.2)
    assert not bench.state.parts.active["a"].progress.waits
    bench.report("w0", preempted("a", 2), now=5.3)
    assert bench.state.parts.active["a"].progress.waits


def test_a_dead_incarnation_takes_no_offline_request_for_its_successor():
    """Its heartbeat waited here while it died."""
    bench = Bench("w0")
    bench.die("w0")
    room = [OfflineCapacity(("m",), 3, 50, 100)]
    bench(HeartbeatReceived("w0", 1, 0, room))
    assert [credit.rows for credit in bench.state.credits("m")] == [0]
    bench(HeartbeatReceived("w0", 2, 0, room))
    assert [credit.rows for credit in bench.state.credits("m")] == [3]


def test_a_new_attempt_is_prompt_plus_emitted_with_the_same_sampling():
    bench = Bench("w0", "w1")
    first = bench.generate("a", prompt=5)[0].submission
    bench.report("w0", emitted("a", 1, 5, [10, 11]))
    (submit,) = bench(WorkerEnded("w0", 1, "killed"))
    second = submit.submission
    assert submit.worker == "w1"
    assert second.tokens == [1, 2, 3, 4, 5, 10, 11]
    assert second.page_hashes == page_hashes(second.tokens, 4, b"")
    assert (second.prompt_length, second.max_length, second.attempt) == (5, 9, 2)
    assert (second.sampling, second.arrival) == (first.sampling, first.arrival)
    assert bench.report("w0", emitted("a", 1, 7, [12])) == [], "the dead worker's late report"
    assert bench.report("w1", emitted("a", 2, 7, [12])) == [delivered("a", 2, 7, [12])]


def test_failed_over_requests_keep_their_place_ahead_of_later_ones():
    bench = Bench("w0")
    bench.generate("a")
    bench.die("w0", back=False)
    bench.generate("b")
    bench(WorkerJoined("w0", 2))
    assert submits(bench.publish([route("w0")])) == [("w0", "a", 2), ("w0", "b", 1)]


def test_a_request_is_shown_where_it_is_and_nowhere_while_it_waits():
    bench = Bench("w0")
    bench.generate("a", max_tokens=1)
    assert (bench.state.describe("a").home, len(bench.state.describe("a").route)) == ("w0", 1)
    bench.die("w0", back=False)
    waiting = bench.state.describe("a")
    assert (waiting.state, waiting.home, waiting.route) == ("waiting", None, [])
    bench(WorkerJoined("w0", 2))
    bench.publish([route("w0")])
    bench.report("w0", emitted("a", 2, 5, [10], [], "length"), incarnation=2)
    assert (bench.state.describe("a").state, bench.state.describe("a").home) == ("finished", "w0"), "the last, once ended"


def test_a_newer_incarnation_fences_the_older():
    bench = Bench("w0", "w1")
    bench.generate("a")
    assert submits(bench(WorkerJoined("w0", 2))) == [("w1", "a", 2)]
    assert bench(WorkerEnded("w0", 1)) == []
    assert bench(WorkerJoined("w0", 1)) == []


@pytest.mark.parametrize("reason", ["route", "host-lost", "cancelled"])
def test_what_a_home_gives_back_starts_again_elsewhere(reason):
    bench = Bench("w0", "w1")
    bench.generate("a")
    effects = bench.report("w0", progressed("a", 1, 2, 0), given_back("a", 1, reason))
    assert submits(effects) == [("w1", "a", 2)]
    assert bench.state.parts.active["a"].deaths.present == (1 if reason == "host-lost" else 0)


def test_the_only_route_is_tried_again_after_a_pause():
    bench = Bench("w0")
    bench.generate("a")
    assert submits(bench.report("w0", given_back("a", 1, "route"), now=1.0)) == []
    assert submits(bench(GatewayTick(), 1.1)) == []
    assert submits(bench(GatewayTick(), 1.3)) == [("w0", "a", 2)]


def test_a_refusal_by_the_worker_fails_the_request_with_its_sentence():
    bench = Bench("w0")
    bench.generate("a")
    (fail,) = bench.report("w0", given_back("a", 1, "refused: needs 9 pages, has 8"))
    assert (fail.refused.why, fail.refused.message) == (Refusal.TOO_LONG, "needs 9 pages, has 8")


def test_a_model_that_overflows_does_so_everywhere():
    bench = Bench("w0", "w1")
    bench.generate("a")
    (fail,) = bench.report("w0", given_back("a", 1, "broken: the activations overflow at token 6"))
    assert (fail.refused.why, fail.refused.message) == (Refusal.BROKEN, "the activations overflow at token 6")
    assert "a" not in bench.state.parts.active


def test_a_refusal_fails_it_only_when_no_other_route_can_hold_it():
    bench = Bench("w0", "w1")
    bench.generate("a")
    assert submits(bench.report("w0", given_back("a", 1, "refused: needs 9 pages, has 8"))) == [("w1", "a", 2)]
    (fail,) = [e for e in bench.report("w1", given_back("a", 2, "refused: needs 9 pages, has 7")) if isinstance(e, Fail)]
    assert (fail.refused.why, fail.refused.message) == (Refusal.TOO_LONG, "needs 9 pages, has 7")


# suspects


def test_deaths_count_only_after_a_first_plan():
    bench = Bench("w0")
    bench.generate("a")
    for _ in range(3):
        bench.die("w0")
    assert bench.state.parts.active["a"].deaths.present == 0
    bench.report("w0", progressed("a", 4, 1, 0), incarnation=4)
    bench.die("w0")
    assert bench.state.parts.active["a"].deaths.present == 1


def test_a_request_that_kills_before_any_report_is_found_all_the_same():
    bench = Bench("w0")
    bench.generate("a")
    deaths = 0
    while bench.state.parts.active:
        bench.die("w0")
        deaths += 1
        assert deaths < 10
    assert deaths == 7, "four near it, then three with it alone"
    assert bench.state.describe("a").state == "failed"


def test_a_suspect_runs_alone_and_the_third_death_fails_it_alone():
    bench = Bench("w0")
    bench.generate("a")
    bench.report("w0", progressed("a", 1, 1, 0))
    bench.die("w0")
    bench.report("w0", progressed("a", 2, 1, 0), incarnation=2)
    assert submits(bench.die("w0")) == [("w0", "a", 3)]
    assert submits(bench.generate("b")) == [], "the suspect's route is closed to others"
    bench.report("w0", progressed("a", 3, 1, 0), incarnation=3)
    fails = [e for e in bench.die("w0") if isinstance(e, Fail)]
    assert [(f.request, f.refused.why) for f in fails] == [("a", Refusal.POISON)]
    assert bench.state.describe("a").state == "failed"
    assert bench.state.describe("b").state == "running"


def test_a_suspect_waits_for_an_idle_route_that_meanwhile_takes_nobody():
    bench = Bench("w0", "w1")
    bench.generate("a", prompt=100)  # on w0
    bench.generate("b", prompt=10)  # on w1
    record = bench.state.parts.active["b"]
    record.deaths.present = 2
    bench.report("w1", given_back("b", 1, "route"))
    assert bench.state.describe("b").state == "waiting", "w1 is avoided, w0 is busy: b waits for w0"
    assert submits(bench.generate("c")) == [("w1", "c", 1)]
    assert submits(bench.generate("d")) == [("w1", "d", 1)], "though w1 has more to do"
    assert bench(End("a"))[:2] == [CancelAt("w0", ("a",)), Closed("a")]
    assert bench.state.describe("b").home == "w0"
    assert bench.state.describe("b").state == "running"


def test_of_several_suspects_one_holds_a_route_while_others_have_work():
    bench = Bench("w0", "w1")
    for name in "abc":
        bench.generate(name)
    bench(WorkerEnded("w0", 1))
    for name in "ab":
        bench.state.parts.active[name].deaths.present = 2
    bench(WorkerEnded("w1", 1))
    for worker in ("w0", "w1"):
        bench(WorkerJoined(worker, 2))
    assert submits(bench.publish([route("w0"), route("w1")])) == [("w0", "a", 3), ("w1", "c", 3)]
    running = {name: bench.state.describe(name).state for name in "abc"}
    assert running["a"] == running["c"] == "running"
    assert running["b"] == "waiting"
    bench(End("c"))
    assert bench.state.describe("b").state == "running", "with suspects only, each has a route of its own"


# waiting


@claim("Requests wait for workers up to the limit and then end with a 503", of="faults")
def test_requests_wait_for_workers_and_then_fail():
    bench = Bench("w0", worker_wait=30.0)
    bench.generate("a", now=0.0)
    bench(WorkerEnded("w0", 1), 10.0)
    bench.generate("b", now=25.0)
    assert bench(GatewayTick(), 39.9) == []
    (fail,) = bench(GatewayTick(), 40.0)
    assert (fail.request, fail.refused.why, fail.refused.retry_after) == ("a", Refusal.UNAVAILABLE, 5.0)
    (fail,) = bench(GatewayTick(), 55.0)
    assert fail.request == "b"


def test_before_any_route_exists_the_wait_counts_from_arrival():
    bench = Bench(routes=[])
    bench.generate("a", now=5.0)
    assert bench(GatewayTick(), 34.0) == []
    assert bench(GatewayTick(), 35.0)[0].refused.why is Refusal.UNAVAILABLE


def test_a_request_expires_wherever_it_is():
    """One request waits for a worker; the worker of the other gets the seconds that are left, and gives it back in time."""
    bench = Bench("w0", request_timeout=10.0)
    (submit,) = bench.generate("a", now=2.0)
    assert submit.submission.timeout == 10.0
    bench(WorkerEnded("w0", 1), 5.0)
    assert bench(GatewayTick(), 11.9) == []
    (fail,) = bench(GatewayTick(), 12.0)
    assert (fail.request, fail.refused.why) == ("a", Refusal.EXPIRED)
    bench = Bench("w0", "w1", request_timeout=10.0)
    (submit,) = bench.generate("b", now=0.0)
    (submit,) = [e for e in bench(WorkerEnded(submit.worker, 1), 4.0) if isinstance(e, Submit)]
    assert submit.submission.timeout == 6.0
    assert bench(GatewayTick(), 10.0) == []
    (fail,) = bench.report(submit.worker, given_back("b", 2, "deadline"), now=10.1)
    assert (fail.request, fail.refused.why) == ("b", Refusal.EXPIRED)
    assert not bench.state.parts.active


# ends


def test_cancel_and_stop_free_the_sequence_once():
    bench = Bench("w0")
    bench.generate("a")
    bench.generate("b")
    assert bench(End("a")) == [CancelAt("w0", ("a",)), Closed("a")]
    assert bench(End("a")) == []
    bench(End("b", stop=True))
    assert bench.state.describe("a").state == "cancelled"
    assert bench.state.describe("b").state == "finished"
    assert bench.report("w0", emitted("a", 1, 5, [10])) == [CancelAt("w0", ("a",))], "the first may have been lost"


def test_an_attempt_that_did_not_arrive_is_sent_again():
    bench = Bench("w0", "w1")
    bench.generate("a")
    assert submits(bench(Unsent("a", 1, "mailbox full"))) == [("w1", "a", 2)]
    assert bench(Unsent("a", 1, "mailbox full")) == []
    assert bench.state.parts.active["a"].deaths.present == 0


def test_a_withdrawn_application_is_unknown_and_its_requests_end():
    bench = Bench("w0", applications=("m", "n"), chains=[chain("m"), chain("n")])
    bench.generate("a", application="n")
    effects = bench.publish([route("w0")], chains=[chain("m")])
    assert [(e.request, e.refused.why) for e in effects] == [("a", Refusal.UNKNOWN_MODEL)]
    assert bench.generate("b", application="n")[0].refused.why is Refusal.UNKNOWN_MODEL
    assert [m.id for m in bench.state.parts.catalogue.models()] == ["m"]
    bench.publish([route("w0"), route("w0", application="n")], chains=[chain("m"), chain("n")])
    assert submits(bench.generate("c", application="n")) == [("w0", "c", 1)]


def test_ended_requests_stay_for_look_up_in_a_bounded_ring():
    bench = Bench("w0")
    for i in range(KEEP + 1):
        bench.state.handle(generation(f"r{i}"), 0.0)
        bench.state.handle(End(f"r{i}"), 0.0)
    assert bench.state.describe("r0") is None
    assert bench.state.describe("r1") is not None
    assert bench.state.describe("never") is None


# views


@claim("A request explains its route, its waits, its prefill and its failovers without any text", of="observability")
def test_the_view_tells_the_story():
    bench = Bench("w0", "w1")
    bench.generate("a", prompt=5, now=1.0)
    bench.report("w0", progressed("a", 1, 2, 2), now=1.5)
    bench.report("w0", progressed("a", 1, 3, 2), now=1.5)
    assert bench.state.describe("a").computed_tokens == 3
    bench.report("w0", emitted("a", 1, 5, [10]), now=2.0)
    assert bench.state.describe("a").computed_tokens == 5
    bench(WorkerEnded("w0", 1, "killed"), 3.0)
    bench.report("w1", emitted("a", 2, 6, [11]), preempted("a", 2), now=4.0)
    bench.report("w1", emitted("a", 2, 7, [12, 13], [], "length"), now=5.0)
    view = bench.state.describe("a")
    assert [e["event"] for e in view.events] == [
        "arrived",
        "dispatched",
        "first_plan",
        "prefill",
        "prefill",
        "first_token",
        "worker_died",
        "dispatched",
        "resumed",
        "preempted",
        "finished",
    ]
    assert [e["at"] for e in view.events] == [0, 0, 0.5, 0.5, 0.5, 1, 2, 2, 3, 3, 4]
    assert view.events[0].items() >= {"prompt_tokens": 5, "max_tokens": 4}.items()
    assert view.events[1].items() >= {"attempt": 1, "hops": [{"worker": "w0", "first": 0, "last": 1}]}.items()
    assert view.events[4].items() >= {"computed": 3, "cached": 2, "of": 5}.items()
    assert (view.state, view.attempt, view.home, view.emitted_tokens) == ("finished", 2, "w1", 4)
    assert view.route == [{"worker": "w1", "first": 0, "last": 1}]


def test_a_request_begins_when_its_first_sweep_does():
    """Most prompts fit one plan, whose report is the first that the gateway hears: its time is no waiting."""
    bench = Bench("w0")
    bench.generate("a", prompt=5, now=1.0)
    bench.generate("b", prompt=5, now=3.75)
    bench.report("w0", emitted("a", 1, 5, [10]), emitted("b", 1, 5, [10]), now=4.0, swept=0.5)
    for name, began in (("a", 2.5), ("b", 0.0)):  # never before it was sent, whatever clocks say
        events = [(e["event"], e["at"]) for e in bench.state.describe(name).events]
        assert events[2:] == [("first_plan", began), ("first_token", 3.0 if name == "a" else 0.25)]
    assert bench.state.parts.active["a"].history.begun == 3.5, "which x-queue-ms and the metrics of waiting are made of"


def test_a_waiting_request_shows_its_place_in_the_queue():
    bench = Bench("w0", routes=[])
    for name in ("a", "b"):
        bench.generate(name)
    bench.publish([route("w0")])
    bench.generate("c")
    for name, ahead in (("a", 0), ("b", 1)):
        events = bench.state.describe(name).events
        assert [(e["event"], e.get("ahead")) for e in events][:3] == [
            ("arrived", None),
            ("queued", ahead),
            ("dispatched", None),
        ]
    assert [e["event"] for e in bench.state.describe("c").events] == ["arrived", "dispatched"]


def test_readiness_follows_the_routes():
    bench = Bench("w0", routes=[], applications=("m", "n"))
    assert bench.state.parts.catalogue.ready(bench.state.parts.draining).applications == {"m": "loading", "n": "loading"}
    bench.publish([route("w0")], chains=[chain("m"), chain("n")])
    ready = bench.state.parts.catalogue.ready(bench.state.parts.draining)
    assert ready.ready
    assert ready.applications == {"m": "ready", "n": "loading"}
    bench(WorkerEnded("w0", 1))
    ready = bench.state.parts.catalogue.ready(bench.state.parts.draining)
    assert not ready.ready
    assert ready.applications["m"] == "waiting"


def test_a_heartbeat_stands_in_for_a_lost_word_that_a_worker_is_up_but_not_for_one_that_ended():
    bench = Bench(routes=[])
    bench(HeartbeatReceived("w0", 1, 0), 1.0)
    assert bench.state.parts.workers.incarnation("w0") == 1
    bench(WorkerEnded("w0", 1, "killed"), 2.0)
    bench(HeartbeatReceived("w0", 1, 0), 3.0)
    assert bench.state.parts.workers.incarnation("w0") is None
    bench(WorkerEnded("w0", 2, "killed before it was known"), 4.0)
    bench(HeartbeatReceived("w0", 2, 0), 5.0)
    assert bench.state.parts.workers.incarnation("w0") is None
    bench(HeartbeatReceived("w0", 3, 0), 6.0)
    assert bench.state.parts.workers.incarnation("w0") == 3


# answers of earlier requests


def test_known_tokens_are_delivered_at_once_and_the_answer_goes_on_behind_them():
    bench = Bench("w0", "w1")
    bench.generate("b", prompt=5)
    effects = bench.generate("a", prompt=5, max_tokens=4, known=[10, 11], home="w0")
    assert effects[0] == delivered("a", 0, 5, [10, 11])
    (submit,) = [one for one in effects if isinstance(one, Submit)]
    assert (submit.submission.tokens, submit.submission.prompt_length) == ([1, 2, 3, 4, 5, 10, 11], 5)
    assert (submit.submission.max_length, submit.worker) == (9, "w0"), "the busier one, where its pages are"
    assert bench.report(submit.worker, emitted("a", 1, 7, [12])) == [delivered("a", 1, 7, [12])]
    effects = bench.die(submit.worker, back=False)
    again = next(one for one in effects if isinstance(one, Submit) and one.submission.request == "a")
    assert again.submission.tokens[5:] == [10, 11, 12]
    news = emitted("a", 2, 8, [13], finish="length")
    assert delivered("a", 2, 8, [13], finish="length") in bench.report(again.worker, news)

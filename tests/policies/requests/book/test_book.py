"""The gateway's rules one by one: admission, dispatch, tokens."""

from dataclasses import replace

from blockwright.actors.gateway.port import ServiceView
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.book.messages import (
    Acknowledge,
    CancelAt,
    Deliver,
    Drain,
    Fail,
    HeartbeatReceived,
    Replay,
    Submit,
    WorkerEnded,
    WorkerJoined,
    WorkersCut,
)
from blockwright.policies.requests.book.queue_position import QueuePositions
from blockwright.policies.requests.book.request_view import view_of
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.urgency import urgency
from blockwright.policies.sweep.events import Preempted
from blockwright.tests.fake_cluster import generation
from blockwright.tests.policies.requests.book.gateway_bench import (
    GATEWAY,
    Bench,
    chain,
    delivered,
    emitted,
    given_back,
    preempted,
    progressed,
    route,
    scored,
    submits,
)

# admission


def test_refusals_carry_status_code_and_the_numbers():
    bench = Bench("w0", max_waiting=2)
    (fail,) = bench.generate(application="nope")
    assert fail.refused.why is Refusal.UNKNOWN_MODEL
    assert "'nope'" in fail.refused.message
    (fail,) = bench.generate(prompt=4000, max_tokens=97)
    assert fail.refused.why is Refusal.TOO_LONG
    assert "4000" in fail.refused.message
    assert "4096" in fail.refused.message
    assert bench.generate(prompt=4000, max_tokens=96) != []
    bench.generate("b")
    (fail,) = bench.generate("c")
    assert (fail.refused.why, fail.refused.retry_after) == (Refusal.OVERLOADED, 1.0)


def test_one_application_does_not_fill_the_gateway_for_another():
    """Without keys applications are accounts; with keys tenants are, whatever they ask for."""
    for fields, other in (({}, {"application": "n"}), ({"tenant": "a"}, {"tenant": "b"})):
        bench = Bench("w0", max_waiting=18, applications=("m", "n"))
        bench.state.tenants = 2 if fields else 0
        answers = [bench.generate(f"r{n}", **fields) for n in range(20)]
        refused = [fail.refused for n in range(20) for fail in answers[n] if n >= 16]
        assert [(r.why, "16 of the 18 requests" in r.message) for r in refused] == [(Refusal.OVERLOADED, True)] * 4
        assert not any(isinstance(effect, Fail) for effect in bench.generate("other", **other))
        bench.state.check()


def test_the_account_of_a_sequence_is_its_tenant_or_its_application():
    bench = Bench("w0")
    accounts = [
        effect.submission.tenant
        for name, tenant in (("a", ""), ("b", "t"))
        for effect in bench.generate(name, tenant=tenant)
        if isinstance(effect, Submit)
    ]
    assert accounts == ["m", "t"]


def test_what_no_worker_can_hold_is_refused():
    bench = Bench("w0", capacity={"m@w0": 100})
    (fail,) = bench.generate(prompt=90, max_tokens=11)
    assert fail.refused.why is Refusal.TOO_LONG
    assert "100" in fail.refused.message
    bench(WorkerEnded("w0", 1))
    (fail,) = bench.generate(prompt=90, max_tokens=11)
    assert fail.refused.why is Refusal.TOO_LONG, "what was known of the capacity holds while no worker is up"


def test_a_route_that_can_hold_the_request_is_preferred():
    bench = Bench("w0", "w1", capacity={"m@w0": 50, "m@w1": 100})
    assert submits(bench.generate(prompt=60)) == [("w1", "r", 1)]


def test_virtual_tokens_are_the_workers_business_alone():
    bench = Bench("w0", chains=[replace(chain("m"), virtual=3)], capacity={"m@w0": 50})
    (fail,) = bench.generate(prompt=4000, max_tokens=94)
    assert "more than the 4093 of model" in fail.refused.message
    (fail,) = bench.generate(prompt=40, max_tokens=8)
    assert "memory for 48 tokens and a worker has memory for 47" in fail.refused.message
    sampling = SamplingParams(seed=7, prompt_logprobs=1)
    (submit,) = bench.generate(prompt=5, max_tokens=4, sampling=sampling)
    tokens, submission = [-1, -1, -1, 1, 2, 3, 4, 5], submit.submission
    assert (submission.tokens, submission.prompt_length, submission.max_length) == (tokens, 8, 12)
    assert submission.page_hashes == page_hashes(tokens, 4)
    entries = [TokenLogprob(-float(position), []) for position in range(1, 8)]
    bench.report("w0", progressed("r", 1, 6, cached=4), scored("r", 1, 1, entries[:5]))
    effects = bench.report("w0", scored("r", 1, 6, entries[5:]), emitted("r", 1, 8, [9]))
    assert effects[0] == Deliver(scored("r", 1, 1, entries[3:])), "of the prompt's tokens but the first"
    assert effects[1].news.tokens == [9]
    view = bench.state.describe("r")
    assert (view.prompt_tokens, view.computed_tokens, view.emitted_tokens) == (5, 5, 1)
    progress = QueuePositions(bench.state.parts.active, bench.state.parts.table).progress(bench.state.parts.active["r"], 0.0)
    assert (progress.prompt, progress.computed, progress.cached) == (5, 5, 1)
    (again,) = (effect.submission for effect in bench.die("w0") if isinstance(effect, Submit))
    assert (again.tokens, again.prompt_length, again.max_length) == ([*tokens, 9], 8, 12)


def test_the_same_id_twice_and_an_empty_prompt_are_refused():
    bench = Bench("w0")
    bench.generate("a")
    assert bench.generate("a")[0].refused.why is Refusal.INVALID
    assert bench.generate("b", prompt=0)[0].refused.why is Refusal.INVALID


def test_a_draining_server_takes_nothing_and_ends_the_rest_on_request():
    bench = Bench("w0")
    bench.generate("a")
    bench(Drain())
    assert bench.generate("b")[0].refused.why is Refusal.UNAVAILABLE
    assert not bench.state.parts.catalogue.ready(bench.state.parts.draining).ready
    effects = bench(Drain(now=True))
    assert effects[0] == CancelAt("w0", ("a",))
    assert effects[1].refused.why is Refusal.UNAVAILABLE
    assert not bench.state.parts.active


# dispatch


def test_a_submission_says_everything():
    bench = Bench("w0")
    effects = bench.generate("a", prompt=9, tenant="t", priority=3, stop_tokens=[5], now=2.5)
    submission = effects[0].submission
    assert submission.gateway == GATEWAY
    assert (submission.route, submission.route_version) == ("m@w0", 1)
    assert submission.page_hashes == page_hashes(list(range(1, 10)), 4, b"")
    assert (submission.prompt_length, submission.max_length) == (9, 13)
    assert (submission.tenant, submission.priority, submission.arrival) == ("t", 3, 2.5)


def test_requests_go_where_least_is_left_to_do():
    bench = Bench("w0", "w1")
    assert submits(bench.generate("a", prompt=50)) == [("w0", "a", 1)]
    assert submits(bench.generate("b", prompt=10)) == [("w1", "b", 1)]
    assert submits(bench.generate("c", prompt=10)) == [("w1", "c", 1)]
    bench.report("w0", progressed("a", 1, 49, 0))
    assert submits(bench.generate("d")) == [("w0", "d", 1)], "the prefill of a is done"


def test_a_pipeline_needs_all_of_its_workers():
    bench = Bench("w0", routes=[route("w0", "w1")])
    assert bench.generate("a") == []
    bench(WorkerJoined("w1", 1))
    assert submits(bench.publish([route("w0", "w1")])) == [("w0", "a", 1)]
    effects = bench(WorkerEnded("w1", 1))
    assert effects == [CancelAt("w0", ("a",))], "the home frees what it has"
    assert bench.state.describe("a").state == "waiting"


def test_a_worker_out_of_reach_serves_again_as_the_same_life():
    bench = Bench("w0", "w1")
    assert submits(bench.generate("a")) == [("w0", "a", 1)]
    assert submits(bench(WorkerEnded("w0", 1, lasting=False))) == [("w1", "a", 2)]
    assert submits(bench.generate("b")) == [("w1", "b", 1)]
    assert bench.state.parts.table.settled == 0, "it needs the routes over it again"
    bench(HeartbeatReceived("w0", 1, 0))
    bench.publish([route("w0"), route("w1")])
    assert submits(bench.generate("c")) == [("w0", "c", 1)]
    bench(WorkerEnded("w0", 1))
    bench(HeartbeatReceived("w0", 1, 0))
    assert bench.state.parts.table.alive == {"w1"}, "that end lasts"


def blamed(bench: Bench) -> int:
    """The deaths that count against the request."""
    deaths = bench.state.parts.active["a"].deaths
    return deaths.present + deaths.near


def test_a_request_is_not_to_blame_for_workers_out_of_reach():
    bench = Bench("w0")
    bench.generate("a")
    for turn in range(6):
        bench.report("w0", progressed("a", turn + 1, 5, 0))
        bench(WorkerEnded("w0", 1, lasting=False))
        assert blamed(bench) == 1, "it may have died"
        bench(HeartbeatReceived("w0", 1, 0))
        assert submits(bench.publish([route("w0")])) == [("w0", "a", turn + 2)]
        assert blamed(bench) == 0
    bench.report("w0", progressed("a", 7, 5, 0))
    bench(WorkerEnded("w0", 1, lasting=False))
    bench(WorkerEnded("w0", 1))
    bench(WorkerJoined("w0", 2))
    assert blamed(bench) == 1, "it has died"


def test_no_request_is_to_blame_for_workers_that_do_not_reach_each_other():
    bench = Bench("w0", "w1", routes=[route("w0", "w1")])
    bench.generate("a")
    for turn in range(6):
        bench.report("w0", progressed("a", turn + 1, 5, 0))
        bench.report("w0", given_back("a", turn + 1, "host-lost"))
        bench(WorkersCut((("w0", "w1"),)))
        assert blamed(bench) == 0
        bench(WorkersCut(()))
        bench.report("w0", given_back("a", turn + 2, "host-lost")) if turn % 2 else None
        bench(WorkersCut((("w0", "w1"),)))
        bench(WorkersCut(()))
    assert "a" in bench.state.parts.active


def test_no_route_leads_over_two_workers_that_do_not_reach_each_other():
    pipelines = [route("w0", "w1"), route("w2", "w1")]
    bench = Bench("w0", "w1", "w2", routes=pipelines)
    bench(WorkersCut((("w1", "w0"),)))
    assert submits(bench.generate("a")) == [("w2", "a", 1)]
    bench(WorkersCut((("w0", "w1"), ("w1", "w2"))))
    assert bench.generate("b") == []
    assert submits(bench(WorkersCut((("w1", "w2"),)))) == [("w0", "b", 1)]
    assert submits(bench(WorkerEnded("w2", 1))) == [("w0", "a", 2)]


def test_an_older_update_is_ignored():
    bench = Bench("w0")
    bench(RoutesChanged(1, [], [], []))
    assert bench.state.parts.catalogue.models()[0].ready


# tokens


def test_tokens_are_taken_once_in_order_of_position():
    bench = Bench("w0")
    bench.generate("a", prompt=5, max_tokens=6)
    assert bench.report("w0", emitted("a", 1, 5, [10, 11])) == [delivered("a", 1, 5, [10, 11])]
    assert bench.report("w0", emitted("a", 1, 5, [10, 11])) == []
    assert bench.report("w0", emitted("a", 1, 6, [11, 12])) == [delivered("a", 1, 7, [12])], "11 is known"
    assert bench.report("w0", emitted("a", 0, 8, [99])) == [], "an older attempt"
    assert bench.report("w0", emitted("zz", 1, 8, [99])) == [CancelAt("w0", ("zz",))], "nobody waits for it"
    (last,) = bench.report("w0", emitted("a", 1, 8, [13], [], "length"))
    assert last == delivered("a", 1, 8, [13], [], "length")
    assert bench.state.describe("a").state == "finished"


def test_logprobs_are_trimmed_with_their_tokens():
    bench = Bench("w0")
    bench.generate("a", prompt=2, stop_tokens=[12])
    bench.report("w0", emitted("a", 1, 2, [10]))
    logprobs = [TokenLogprob(-1.0, [(10, -1.0)]), TokenLogprob(-2.0, [(12, -2.0)])]
    (last,) = bench.report("w0", emitted("a", 1, 2, [10, 12], logprobs, "stop"))
    assert last == delivered("a", 1, 3, [12], logprobs[1:], "stop")


def test_a_gap_in_serials_asks_for_a_replay():
    bench = Bench("w0")
    bench.generate("a")
    assert bench.report("w0", emitted("a", 1, 6, [11]), serial=2) == [Replay("w0", 1)]
    assert bench.report("w0", emitted("a", 1, 5, [10]), serial=1) == [delivered("a", 1, 5, [10])]
    assert bench.report("w0", emitted("a", 1, 6, [11]), serial=2) == [delivered("a", 1, 6, [11])]


def test_a_gap_in_positions_runs_the_request_again_from_what_it_has():
    bench = Bench("w0")
    bench.generate("a", prompt=5)
    cancel, submit = bench.report("w0", emitted("a", 1, 7, [12]))
    assert cancel == CancelAt("w0", ("a",))
    assert (submit.submission.attempt, submit.submission.tokens) == (2, [1, 2, 3, 4, 5])


def test_heartbeats_acknowledge_and_mend():
    bench = Bench("w0")
    bench.generate("a")
    bench.report("w0", emitted("a", 1, 5, [10]))
    assert bench(HeartbeatReceived("w0", 1, 2)) == [Acknowledge("w0", 1)]
    assert bench(HeartbeatReceived("w0", 1, 2)) == [Replay("w0", 2)]
    assert bench(HeartbeatReceived("w0", 9, 5)) == [], "another incarnation"
    assert bench(HeartbeatReceived("w9", 1, 5)) == []


def test_scores_of_the_prompt_are_reported_once_and_survive_an_attempt():
    """They come in parts and again after a death; the client gets them whole, before any token."""
    entries = [TokenLogprob(-float(i), []) for i in range(1, 5)]
    bench = Bench("w0", "w1")
    bench(generation("a", prompt=5, sampling=SamplingParams(temperature=0.0, prompt_logprobs=0)))
    home = bench.state.parts.active["a"].placement.workers[0]
    other = "w1" if home == "w0" else "w0"
    assert bench.report(home, progressed("a", 1, 3, 0), scored("a", 1, 1, entries[:2])) == []
    again = [e for e in bench.die(home, back=False) if isinstance(e, Submit)]
    assert again[0].submission.sampling.prompt_logprobs == 0
    events = bench.report(other, scored("a", 1, 1, entries), scored("a", 2, 1, entries[:3]))
    assert events == []
    events = bench.report(other, scored("a", 2, 4, entries[3:]), emitted("a", 2, 5, [9]))
    assert events == [Deliver(scored("a", 2, 1, entries)), delivered("a", 2, 5, [9])]
    bench(WorkerJoined(home, 2))
    bench.publish([route(home)])
    last = [e for e in bench.die(other, back=False) if isinstance(e, Submit)]
    assert last[0].submission.sampling.prompt_logprobs == -1, "all is known: the prefix cache may be used"


def test_the_view_of_a_request_tells_its_class_its_account_and_whose_row_it_gave():
    bench = Bench("w0")
    bench.generate("a", family="m", priority=urgency("flex", 0))
    bench.report("w0", progressed("a", 1, 0, 0), preempted("a"), now=1.0)
    view = view_of(bench.state.parts.active["a"]).service
    assert view == ServiceView(asked="batch", account="m", tier="m")
    bench.report("w0", Preempted(GATEWAY, "a", 1, urgent=True), now=2.0)
    bench.report("w0", replace(progressed("a", 1, 0, 0), risen=2), now=3.0)
    record = bench.state.parts.active["a"]
    assert view_of(record).service == ServiceView(asked="batch", account="m", tier="m", risen=2, yielded=1)
    shown = [event for event in view_of(record).events if event["event"] in ("preempted", "risen")]
    assert [(event["at"], event.get("for"), event.get("to")) for event in shown] == [
        (1.0, None, None), (2.0, "urgent", None), (3.0, None, "urgent"),
    ]  # fmt: skip
    bench.die("w0", now=4.0)
    assert view_of(record).service.risen == 0, "the next worker says it again"
    bench.report("w0", replace(progressed("a", 2, 0, 0), risen=1), incarnation=2, now=5.0)
    assert view_of(record).service.risen == 1
    assert view_of(record).events[-2:][0]["to"] == "normal"


def test_an_attempt_brings_along_what_its_request_has_waited():
    """On its gateway, on workers, and after a preemption: each wait counts until the plan that ends it."""
    bench = Bench("w0", "w1")
    (sent,) = [effect for effect in bench.generate("a", now=1.0) if isinstance(effect, Submit)]
    assert sent.submission.waited == 0
    (again,) = [effect for effect in bench.die(sent.worker, now=5.0, back=False) if isinstance(effect, Submit)]
    assert again.submission.waited == 4, "it has not begun"
    (last,) = bench.die(again.worker, now=6.0, back=False) or [None]
    assert last is None, "it waits for a worker"
    bench(WorkerJoined("w2", 1), 9.0)
    (third,) = [effect for effect in bench.publish([route("w2")], now=9.0) if isinstance(effect, Submit)]
    assert third.submission.waited == 8
    bench.report("w2", progressed("a", 3, 4), now=11.5, swept=0.5)
    bench.report("w2", emitted("a", 3, 5, [10]), now=20.0)
    bench.report("w2", preempted("a", 3), now=30.0)
    bench.report("w2", progressed("a", 3, 0), now=33.0)
    bench.report("w2", preempted("a", 3), now=40.0)
    bench(WorkerJoined("w3", 1), 41.0)
    bench.publish([route("w2"), route("w3")], now=41.0)
    (fourth,) = [effect for effect in bench.die("w2", now=42.0, back=False) if isinstance(effect, Submit)]
    assert fourth.submission.waited == 10 + 3 + 2


def test_tiers_of_a_family_are_one_account():
    bench = Bench("w0")
    (sent,) = [effect for effect in bench.generate("a", family="top") if isinstance(effect, Submit)]
    assert sent.submission.tenant == "top"

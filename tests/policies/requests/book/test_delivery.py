"""Requests that choose their tier at the gateway: what is held back, when they go up, and what the client gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.gateway.port import AutoTier, TierView
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.book.messages import (
    CancelAt,
    Deliver,
    End,
    Fail,
    GatewayTick,
    HeartbeatReceived,
    Submit,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.requests.book.queue_position import QueuePositions
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.sweep.events import DraftsVerified, ExitEntered, SatOut
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.tests.policies.requests.book.gateway_bench import (
    GATEWAY,
    Bench,
    chain,
    emitted,
    progressed,
    route,
    scored,
    submits,
)

LOW, TOP = "m:2", "m"
RULE = Threshold(theta=0.8, tokens=3)


def routes(*workers: str) -> list[Any]:
    return [route(worker, application=name) for name in (TOP, LOW) for worker in workers]


def bench_of(*workers: str, **options: Any) -> Bench:
    """A gateway with a family of two tiers, both on each worker."""
    lower = replace(chain(LOW), family=TOP)
    return Bench(*workers, applications=(TOP, LOW), chains=[chain(TOP), lower], routes=routes(*workers), **options)


def up_again(bench: Bench, worker: str, incarnation: int) -> list[Any]:
    """The worker is back, with its routes."""
    effects = bench(WorkerJoined(worker, incarnation))
    return [*effects, *bench.publish(routes(worker), [chain(TOP), replace(chain(LOW), family=TOP)])]


def asked(sequences: int = 1, rule: Threshold = RULE, **more: Any) -> dict[str, Any]:
    """Fields of a generation that chooses."""
    return {"application": LOW, "auto": AutoTier(top=TOP, threshold=rule, sequences=sequences, **more)}


def sure(*probabilities: float) -> list[TokenLogprob]:
    """Log-probabilities of as many tokens, of which the most likely one has each probability, the next the rest."""
    return [TokenLogprob(math.log(0.01), [(7, math.log(p)), (8, math.log(1 - p + 1e-9))]) for p in probabilities]


def delivered(effects: Sequence[object]) -> list[tuple[str, int, list[int]]]:
    """The tokens for clients: request, position, tokens."""
    return [(e.news.request, e.news.position, e.news.tokens) for e in effects if isinstance(e, Deliver)]


def applications(effects: Sequence[object]) -> list[str]:
    """The routes of the attempts that start."""
    return [e.submission.route for e in effects if isinstance(e, Submit)]


def test_a_sure_answer_goes_on_after_its_first_tokens() -> None:
    bench = bench_of("w0")
    assert applications(bench.generate(max_tokens=8, **asked())) == ["m:2@w0"]
    record = bench.state.parts.active["r"]
    positions = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    assert delivered(bench.report("w0", emitted("r", 1, 5, [11, 12], sure(0.9, 0.7)))) == []
    assert positions.progress(record, 0.0).tier == ""
    assert bench.state.describe("r").tier == TierView(tier="", start=LOW, theta=0.8, measure="mean")
    effects = bench.report("w0", emitted("r", 1, 7, [13], sure(0.8)), now=2.0)
    assert effects[0] == Deliver(emitted("r", 1, 5, [11, 12, 13])), "at once, and without what only the choice needed"
    assert positions.progress(record, 0.0).tier == LOW
    seen = bench.state.describe("r").tier
    assert (seen.tier, seen.escalated, seen.tokens, seen.seconds) == (LOW, False, 3, 2.0)
    assert seen.confidence == pytest.approx(0.8)
    assert bench.state.describe("r").model == "m:auto"
    assert delivered(bench.report("w0", emitted("r", 1, 8, [14], sure(0.1)))) == [("r", 8, [14])], "chosen once"
    assert bench.state.parts.choices.figures.chosen == {(TOP, LOW): 1}


def test_an_unsure_answer_begins_anew_on_the_top_tier_with_its_seed_and_none_of_its_tokens() -> None:
    bench = bench_of("w0", "w1")
    sampling = SamplingParams(seed=7, logprobs=1)
    drafts, above = DraftOptions(prompt=True), DraftOptions(prompt=True, tokens=2)
    effects = bench.generate(max_tokens=8, sampling=sampling, drafts=drafts, **asked(drafts=above))
    ((home, _, _),) = submits(effects)
    bench.report(home, progressed("r", 1, 5), DraftsVerified(GATEWAY, "r", 1, "prompt", 4, 1))
    effects = bench.report(home, emitted("r", 1, 5, [11, 12, 13], sure(0.7, 0.8, 0.8)), now=3.0)
    assert delivered(effects) == []
    (submit,) = (e for e in effects if isinstance(e, Submit))
    outcome = submit.submission
    assert CancelAt(home, ("r",)) in effects
    assert (submit.worker, outcome.route, outcome.attempt) == (home, f"m@{home}", 2), "where KV of its prompt is"
    assert (outcome.tokens, outcome.prompt_length, outcome.max_length) == ([1, 2, 3, 4, 5], 5, 13)
    assert (outcome.sampling, outcome.drafts, outcome.tenant) == (sampling, above, TOP)
    record = bench.state.parts.active["r"]
    assert record.history.drafts == {}, "drafts of an answer that nobody gets"
    bench.report(home, ExitEntered(GATEWAY, "r", 2, 2, 0, 4))
    bench.report(home, emitted("r", 1, 8, [14], sure(0.9)))
    assert bench.state.parts.active["r"].progress.emitted == 0, "the old attempt does not count any more"
    own = sure(0.3)
    assert delivered(bench.report(home, emitted("r", 2, 5, [21], own))) == [("r", 5, [21])]
    effects = bench.report(home, emitted("r", 2, 6, [22], own, finish="stop"), now=5.0)
    assert effects[0] == Deliver(emitted("r", 2, 6, [22], own, finish="stop")), "as the client asked for them"
    seen = bench.state.describe("r").tier
    assert (seen.tier, seen.start, seen.escalated, seen.seconds) == (TOP, LOW, True, 3.0)
    assert bench.state.describe("r").emitted_tokens == 2
    assert bench.state.describe("r").entered == {"2": 4}, "the move up is reported, too"
    assert bench.state.parts.choices.figures.chosen == {(TOP, TOP): 1}


def test_the_wait_on_the_lower_tier_counts_on_the_top_tier() -> None:
    bench = bench_of("w0")
    bench.generate(max_tokens=8, **asked())
    bench.report("w0", progressed("r", 1, 5), now=8.0, swept=1.0)
    effects = bench.report("w0", emitted("r", 1, 5, [11, 12, 13], sure(0.1, 0.1, 0.1)), now=12.0)
    (submit,) = (e for e in effects if isinstance(e, Submit))
    assert (submit.submission.route, submit.submission.waited) == ("m@w0", 7.0), "until its first plan, not while it ran"


def test_prompt_tokens_that_began_at_an_exit_are_counted_once() -> None:
    """Recomputed tokens, what the first tier of a request entered, and its answer do not count."""
    bench = bench_of("w0", "w1")
    effects = bench.generate(prompt=12, max_tokens=8, **asked())
    ((home, _, _),) = submits(effects)
    bench.report(home, ExitEntered(GATEWAY, "r", 1, 1, 0, 12))
    assert bench.state.describe("r").entered == {"1": 12}
    bench.report(home, emitted("r", 1, 12, [11, 12, 13], sure(0.1)))
    bench.report(home, ExitEntered(GATEWAY, "r", 1, 1, 0, 8))
    assert bench.state.describe("r").entered == {}, "it began anew on the top tier"
    bench.report(home, ExitEntered(GATEWAY, "r", 2, 2, 0, 4), ExitEntered(GATEWAY, "r", 2, 1, 4, 8))
    bench.report(home, ExitEntered(GATEWAY, "r", 2, 2, 0, 6), ExitEntered(GATEWAY, "r", 2, 2, 6, 16))
    assert bench.state.describe("r").entered == {"1": 4, "2": 8}


def test_the_time_that_a_request_was_parked_is_seen_while_it_runs() -> None:
    """Time of an attempt that is over does not count."""
    bench = bench_of("w0")
    bench.generate(max_tokens=8, **asked())
    bench.report("w0", progressed("r", 1, 5), SatOut(GATEWAY, "r", 1, 1, 0.25), SatOut(GATEWAY, "r", 0, 1, 8.0))
    assert (bench.state.describe("r").parked_steps, bench.state.describe("r").parked_seconds) == (1, 0.25)
    bench.report("w0", SatOut(GATEWAY, "r", 1, 2, 0.5), emitted("r", 1, 5, [11], finish="stop"))
    assert (bench.state.describe("r").parked_steps, bench.state.describe("r").parked_seconds) == (3, 0.75)


def test_virtual_tokens_do_not_count_as_entered() -> None:
    bench = bench_of("w0")
    bench.generate(prompt=12, max_tokens=8, **asked())
    record = bench.state.parts.active["r"]
    record.progress.virtual, record.progress.tokens = 4, [0] * 4 + record.progress.tokens
    record.history.entered_at(ExitEntered(GATEWAY, "r", 1, 2, 0, 8), record.progress.virtual, record.progress.begins)
    assert record.history.entered == {2: 4}


@pytest.mark.parametrize(
    ("asks", "measure", "wanted"), [(-1, "mean", 1), (0, "margin", 2), (3, "margin", 3), (1, "entropy", 5)]
)
def test_workers_report_what_the_measure_needs_and_clients_get_what_they_asked_for(
    asks: int, measure: str, wanted: int
) -> None:
    bench = bench_of("w0")
    rule = Threshold(theta=0.0, measure=measure, tokens=1)
    (submit,) = bench.generate(sampling=SamplingParams(seed=1, logprobs=asks), **asked(rule=rule))
    assert submit.submission.sampling.logprobs == wanted
    top = [(token, math.log(0.2) - token) for token in range(wanted)]
    effects = bench.report("w0", emitted("r", 1, 5, [1], [TokenLogprob(-1.0, top)]))
    expected = [] if asks < 0 else [TokenLogprob(-1.0, top[:asks])]
    assert effects[0].news.logprobs == expected
    bench(WorkerEnded("w0", 1, "killed"))
    effects = up_again(bench, "w0", 2)
    (again,) = (e for e in effects if isinstance(e, Submit))
    assert again.submission.sampling.logprobs == asks, "after the choice only the client's"


@pytest.mark.parametrize("stays", [True, False])
def test_an_answer_that_ends_before_is_judged_by_what_there_is(stays: bool) -> None:
    bench = bench_of("w0")
    bench.generate(max_tokens=1, **asked())
    effects = bench.report("w0", emitted("r", 1, 5, [11], sure(0.9 if stays else 0.5), finish="length"))
    assert delivered(effects) == ([("r", 5, [11])] if stays else [])
    assert applications(effects) == ([] if stays else ["m@w0"])
    assert bool(bench.state.parts.active) is not stays


def test_tokens_behind_a_stop_string_do_not_count() -> None:
    bench = bench_of("w0")
    bench.generate(max_tokens=8, **asked(length=lambda tokens: tokens.index(9) + 1 if 9 in tokens else None))
    assert delivered(bench.report("w0", emitted("r", 1, 5, [11], sure(0.9)))) == []
    effects = bench.report("w0", emitted("r", 1, 6, [9, 12], sure(0.9, 0.1)))
    assert delivered(effects) == [("r", 5, [11, 9, 12])], "the front finds the stop string"
    assert bench.state.describe("r").tier.tokens == 2


def test_the_least_sure_choice_decides_for_all_and_ended_ones_wait() -> None:
    for last, up in ((0.8, False), (0.7, True)):
        bench = bench_of("w0")
        for name in ("r", "r/1", "r/2"):
            bench.generate(name, max_tokens=3, **asked(sequences=3))
        assert delivered(bench.report("w0", emitted("r", 1, 5, [1, 2, 3], sure(0.9, 0.9, 0.9), finish="length"))) == []
        assert (bench.state.parts.active["r"].state, bench.state.describe("r").state) == ("held", "running")
        assert delivered(bench.report("w0", emitted("r/1", 1, 5, [4, 5, 6], sure(1.0, 1.0, 1.0)))) == []
        bench(GatewayTick(), now=1.0)
        effects = bench.report("w0", emitted("r/2", 1, 5, [7], sure(last), finish="stop"))
        assert applications(effects) == (["m@w0"] * 3 if up else [])
        tokens = [("r", 5, [1, 2, 3]), ("r/1", 5, [4, 5, 6]), ("r/2", 5, [7])]
        assert delivered(effects) == ([] if up else tokens)
        assert set(bench.state.parts.active) == ({"r", "r/1", "r/2"} if up else {"r/1"})
        assert bench.state.parts.choices.figures.chosen == {(TOP, TOP if up else LOW): 1}, "one request"


def test_a_death_before_the_choice_loses_nothing_and_one_after_it_stays_on_the_tier() -> None:
    for probability, tier in ((0.9, LOW), (0.1, TOP)):
        bench = bench_of("w0")
        bench.generate(max_tokens=8, **asked())
        bench.report("w0", emitted("r", 1, 5, [11, 12], sure(probability, probability)))
        bench(WorkerEnded("w0", 1, "killed"))
        effects = up_again(bench, "w0", 2)
        (again,) = (e.submission for e in effects if isinstance(e, Submit))
        assert (again.route, again.tokens[5:], again.sampling.logprobs) == ("m:2@w0", [11, 12], 1)
        effects = bench.report("w0", emitted("r", 2, 7, [13], sure(probability)), incarnation=2)
        assert delivered(effects) == ([("r", 5, [11, 12, 13])] if tier == LOW else [])
        attempt = 2 if tier == LOW else 3
        bench.report("w0", emitted("r", attempt, 8 if tier == LOW else 5, [14], sure(0.5)), incarnation=2)
        bench(WorkerEnded("w0", 2, "killed"))
        effects = up_again(bench, "w0", 3)
        assert applications(effects) == [f"{tier}@w0"]
        assert [e.submission.tokens[-1] for e in effects if isinstance(e, Submit)] == [14]


def test_a_death_while_an_ended_choice_waits_does_not_touch_it() -> None:
    bench = bench_of("w0", "w1")
    for name in ("r", "r/1"):
        bench.generate(name, max_tokens=3, **asked(sequences=2))
    first, second = (bench.state.parts.active[name].placement.workers[0] for name in ("r", "r/1"))
    bench.report(first, emitted("r", 1, 5, [1], sure(0.9), finish="stop"))
    bench(WorkerEnded(first, 1, "killed"))
    assert bench.state.parts.active["r"].state == "held"
    effects = bench.report(second, emitted("r/1", 1, 5, [2], sure(0.1), finish="stop"))
    assert applications(effects) == [f"m@{second}"] * 2, "the worker that has its KV is gone"


def test_a_client_that_leaves_before_the_choice_frees_everything() -> None:
    bench = bench_of("w0")
    for name in ("r", "r/1"):
        bench.generate(name, max_tokens=3, **asked(sequences=2))
    bench.report("w0", emitted("r", 1, 5, [1], sure(0.9), finish="stop"))
    assert bench(End("r")) != []
    assert CancelAt("w0", ("r/1",)) in bench(End("r/1"))
    assert not bench.state.parts.active
    assert bench.state.parts.usage.none(TOP)
    assert bench.state.parts.usage.none(LOW)


def test_a_request_whose_time_is_over_fails_before_and_after_the_choice() -> None:
    bench = bench_of("w0", request_timeout=10.0)
    for name in ("r", "r/1"):
        bench.generate(name, max_tokens=3, **asked(sequences=2))
    bench.report("w0", emitted("r", 1, 5, [1], sure(0.9), finish="stop"), now=1.0)
    effects = bench(GatewayTick(), now=11.0)
    assert [(e.request, e.refused.why) for e in effects if isinstance(e, Fail)] == [("r", Refusal.EXPIRED)]
    bench(End("r/1"), now=11.0)
    bench.generate("s", max_tokens=9, **asked(), now=20.0)
    effects = bench.report("w0", emitted("s", 1, 5, [1, 1, 1], sure(0.1, 0.1, 0.1)), now=24.0)
    assert [e.submission.timeout for e in effects if isinstance(e, Submit)] == [6.0], "the time counts from its arrival"


def test_prompt_scores_are_those_of_the_tier_that_answers() -> None:
    for probability, tier in ((0.9, LOW), (0.1, TOP)):
        bench = bench_of("w0")
        bench.generate(max_tokens=8, sampling=SamplingParams(seed=7, prompt_logprobs=0), **asked())
        low, top = ([TokenLogprob(value, []) for _ in range(4)] for value in (-1.0, -2.0))
        assert delivered_scores(bench.report("w0", scored("r", 1, 1, low))) == []
        effects = bench.report("w0", emitted("r", 1, 5, [1, 2, 3], sure(*[probability] * 3)))
        if tier == TOP:
            assert [e.submission.sampling.prompt_logprobs for e in effects if isinstance(e, Submit)] == [0]
            assert delivered_scores(effects) == []
            effects = bench.report("w0", scored("r", 2, 1, top), emitted("r", 2, 5, [1]))
        assert delivered_scores(effects) == [low if tier == LOW else top]


def delivered_scores(effects: Sequence[object]) -> list[list[TokenLogprob]]:
    return [e.news.entries for e in effects if isinstance(e, Deliver) and hasattr(e.news, "entries")]


def test_lines_of_batches_go_up_by_credit() -> None:
    bench = bench_of("w0")
    bench.generate(max_tokens=8, offline=True, home="w0", **asked())
    credit = [OfflineCapacity((LOW,), 1, 100, 200)]
    assert applications(bench(HeartbeatReceived("w0", 1, 0, credit))) == ["m:2@w0"]
    effects = bench.report("w0", progressed("r", 1, 5), emitted("r", 1, 5, [1, 2, 3], sure(0.1, 0.1, 0.1)))
    assert applications(effects) == [], "no credit of the top tier yet"
    assert applications(bench(HeartbeatReceived("w0", 1, 0, [OfflineCapacity((TOP,), 1, 100, 200)]))) == ["m@w0"]
    assert delivered(bench.report("w0", emitted("r", 2, 5, [4], finish="stop"))) == [("r", 5, [4])]


def test_what_the_top_tier_can_never_hold_is_refused_at_arrival() -> None:
    bench = bench_of("w0", capacity={"m@w0": 40, "m:2@w0": 100})
    (fail,) = bench.generate(prompt=40, max_tokens=8, **asked())
    assert fail.refused.why is Refusal.TOO_LONG
    assert "memory for 48 tokens" in fail.refused.message
    (fail,) = bench.generate(application=LOW, auto=AutoTier(top="gone", threshold=RULE))
    assert fail.refused.why is Refusal.UNKNOWN_MODEL


def test_a_top_tier_that_is_not_loaded_is_asked_for_when_it_is_needed() -> None:
    lower = replace(chain(LOW), family=TOP)
    bench = Bench("w0", applications=(TOP, LOW), chains=[chain(TOP), lower], routes=[route("w0", application=LOW)])
    bench.generate(max_tokens=8, **asked())
    effects = bench.report("w0", emitted("r", 1, 5, [1, 2, 3], sure(0.1, 0.1, 0.1)))
    assert applications(effects) == []
    assert bench.state.parts.active["r"].state == "waiting"
    assert applications(bench.publish(routes("w0"), [chain(TOP), lower])) == ["m@w0"]


def test_the_model_that_chooses_is_listed_behind_its_tiers() -> None:
    stored = Threshold(theta=0.5)
    lower = [replace(chain(name), family=TOP, threshold=rule) for name, rule in ((LOW, None), ("m:3", stored))]
    bench = Bench("w0", applications=(TOP, LOW, "m:3", "n"), chains=[chain(TOP), *lower, chain("n")], routes=routes("w0"))
    models = {info.id: info for info in bench.state.parts.catalogue.models()}
    assert list(models) == [TOP, LOW, "m:3", "m:auto", "n"]
    auto = models["m:auto"]
    assert (auto.starts, auto.threshold, auto.family, auto.parent) == ("m:3", stored, TOP, TOP), "the lowest with a rule"
    assert not auto.ready, "one of its tiers is not"
    assert models[TOP].tiers == (LOW, "m:3")
    assert bench.state.parts.catalogue.start("m:auto") == "m:3"
    assert bench.state.parts.catalogue.start("n") == "n"

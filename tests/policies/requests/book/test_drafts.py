"""A request's drafts at the gateway: what each attempt asks for, what is counted, and the reason if there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.actors.gateway.port import AutoTier, DraftCounts, DraftView
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.policies.drafts.draft_model import no_model
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.requests.book.drafts import NOT_ASKED, OFFLINE
from blockwright.policies.requests.book.messages import HeartbeatReceived, Submit
from blockwright.policies.requests.book.queue_position import QueuePositions
from blockwright.policies.sweep.events import DraftsVerified
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.tests.policies.requests.book.gateway_bench import (
    GATEWAY,
    Bench,
    chain,
    emitted,
    given_back,
    progressed,
    route,
)

WANTED = DraftOptions(prompt=True, tokens=4, prediction=[7, 8])


def drafts_of(effects: list) -> list[DraftOptions | None]:
    """The drafts of each attempt that starts."""
    return [effect.submission.drafts for effect in effects if isinstance(effect, Submit)]


def verified(attempt: int, source: str, drafted: int, accepted: int) -> DraftsVerified:
    return DraftsVerified(GATEWAY, "r", attempt, source, drafted, accepted)


def test_every_attempt_asks_for_the_drafts_and_all_are_counted() -> None:
    bench = Bench("w0", "w1")
    assert drafts_of(bench.generate(drafts=WANTED)) == [WANTED]
    bench.report("w0", progressed("r", 1, 5), verified(1, "prompt", 4, 1), emitted("r", 1, 5, [9, 9]))
    bench.report("w0", verified(1, "prompt", 4, 4), verified(1, "prediction", 2, 0))
    record = bench.state.parts.active["r"]
    effects = bench.die("w0")
    assert drafts_of(effects) == [WANTED], "the one after a death, too"
    bench.report("w1", verified(1, "prompt", 4, 4), DraftsVerified(GATEWAY, "r", 2, "prediction", 6, 2, 3))
    assert drafts_of(bench.report("w1", given_back("r", 2, "full"))) == [WANTED]
    bench.report("w0", verified(3, "prompt", 1, 1), emitted("r", 3, 7, [9, 9], finish="length"), incarnation=2)
    counts = {"prompt": DraftCounts(3, 9, 6), "prediction": DraftCounts(4, 8, 2)}
    assert bench.state.describe("r").drafts == DraftView(prompt=True, prediction_tokens=2, tokens=4, sources=counts)
    assert QueuePositions(bench.state.parts.active, bench.state.parts.table).progress(record, 0.0).drafts == counts


def test_the_reason_is_reported_if_there_are_none() -> None:
    bench = Bench("w0", "w1", routes=[route("w0", "w1")])
    assert drafts_of(bench.generate("a")) == [None]
    assert bench.state.describe("a").drafts == DraftView(reason=NOT_ASKED)
    assert drafts_of(bench.generate("b", drafts=WANTED)) == [WANTED]
    assert bench.state.describe("b").drafts.reason == ""
    bench.generate("c", auto=AutoTier(top="m", threshold=Threshold(theta=0.5), drafts=WANTED))
    assert bench.state.describe("c").drafts.reason == "m passes no exit that the request or the setting drafts asks for"


def test_the_reason_is_reported_if_no_tier_can_draft() -> None:
    wanted = DraftOptions(prompt=True, tiers=["m:1", "m:2"])
    models, routes = ("m", "m:1", "m:2"), [route("w0"), route("w1", application="m:1")]
    bench = Bench("w0", "w1", applications=models, routes=routes)
    bench.generate("a", drafts=wanted)
    message = "m:1 or m:2 is not served whole by w0, where the request runs"
    assert bench.state.describe("a").drafts == DraftView(prompt=True, tiers=["m:1", "m:2"], reason=message)
    bench.publish([*routes, route("w0", "w1", application="m:2")])
    bench.generate("b", drafts=wanted)
    assert bench.state.describe("b").drafts.reason == message, "over two workers is not whole"
    bench.publish([route("w0"), route("w0", application="m:2")])
    bench.generate("c", drafts=wanted)
    assert bench.state.describe("c").drafts.reason == ""
    bench = Bench("w0", "w1", routes=[route("w0", "w1")])
    bench.generate("d", drafts=wanted)
    bench.generate("e", drafts=WANTED)
    message = "a tier drafts on one worker only, and the request is on a route over 2 workers"
    assert bench.state.describe("d").drafts.reason == message
    assert bench.state.describe("e").drafts.reason == ""


def test_the_reason_is_reported_if_a_model_cannot_draft() -> None:
    wanted = DraftOptions(tokens=2, model="small")
    routes = [route("w0"), route("w1", application="small")]
    bench = Bench("w0", "w1", applications=("m", "small"), routes=routes)
    bench.generate("a", drafts=wanted)
    reason = "small is not served whole by w0, where the request runs"
    assert bench.state.describe("a").drafts == DraftView(model="small", tokens=2, reason=reason)
    bench.publish([*routes, route("w0", application="small")])
    assert bench.state.describe("a").drafts.reason == "", "the request that runs has drafts from now on"
    bench.publish([route("w0")])
    assert bench.state.describe("a").drafts.reason == reason
    bench.generate("b", drafts=DraftOptions(model="gone"))
    assert bench.state.describe("b").drafts.reason == "gone is not served"
    bench.generate("c", drafts=DraftOptions(model="m", reason="but m would draft for itself"))
    assert bench.state.describe("c").drafts.reason == "m would draft for itself"
    bench.generate("e", drafts=DraftOptions(model="gone", reason=no_model("gone", ["m"])))
    assert bench.state.describe("e").drafts.reason == "gone is not served"
    bench = Bench("w0", "w1", routes=[route("w0", "w1")], applications=("m", "small"))
    bench.generate("d", drafts=wanted)
    reason = "a model drafts on one worker only, and the request is on a route over 2 workers"
    assert bench.state.describe("d").drafts.reason == reason


def test_a_draft_model_that_went_while_the_request_ran_is_reported_after_its_end() -> None:
    bench = Bench("w0", applications=("m", "small"), routes=[route("w0"), route("w0", application="small")])
    bench.generate("a", drafts=DraftOptions(tokens=2, model="small"))
    bench.publish([route("w0")])
    bench.report("w0", emitted("a", 1, 5, [9], finish="length"))
    assert "a" in bench.state.parts.past
    assert bench.state.describe("a").drafts.reason == "small is not served whole by w0, where the request runs"


def test_lines_of_batches_have_none() -> None:
    bench = Bench("w0")
    bench.generate("a", offline=True, home="w0", drafts=WANTED)
    assert drafts_of(bench(HeartbeatReceived("w0", 1, 0, [OfflineCapacity(("m",), 1, 100, 200)]))) == [None]
    assert bench.state.describe("a").drafts.reason == OFFLINE


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match=r"drafts.b names no application; there are: a"):
        Settings(applications={"a": "/a"}, drafts={"b": "auto"})
    with pytest.raises(
        SettingsError, match=r"drafts.\* is 'b', which is neither a source of drafts nor a model that is served"
    ):
        Settings(applications={"a": "/a"}, drafts={"*": "b"})
    with pytest.raises(SettingsError, match=r"draft_tokens is 99; give 0 \(as many as pay\) to 16"):
        Settings(draft_tokens=99)
    with pytest.raises(SettingsError, match="draft_rule is 'chance'; choose one of coupling, rejection"):
        Settings(draft_rule="chance")
    assert (
        Settings(applications={"a": "/a"}, adapters="/x", drafts={"b": "prompt", "*": "off"}).drafting.drafts["b"]
        == "prompt"
    )


def test_a_new_version_of_a_model_has_its_drafting_chain_and_the_account_of_the_one_before() -> None:
    own = replace(chain("m~2"), model="m")
    drafting = replace(chain("m~surrogate~2"), model="m~surrogate", drafts_for="m~2")
    routes = [route("w0", application="m~2"), route("w0", application="m~surrogate~2")]
    bench = Bench("w0", routes=routes, chains=[own, drafting])
    (submit,) = bench.generate("a", drafts=DraftOptions(tokens=2, model="m~surrogate"))
    assert submit.submission.tenant == "m"
    assert bench.state.describe("a").drafts.reason == ""
    bench.publish(routes[:1], [own])
    bench.generate("b", drafts=DraftOptions(tokens=2, model="m~surrogate"))
    assert bench.state.describe("b").drafts.reason == "m~surrogate is not served"

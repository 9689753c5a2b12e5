"""Length estimates of a gateway: the workers that get them, and the ends that they are learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blockwright.actors.tagger.request_log import read_requests
from blockwright.actors.topology import Http
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.prediction.lengths import Features, bounded
from blockwright.policies.requests.book.lengths import MOST_LESSONS, Lengths
from blockwright.policies.requests.book.messages import End, Submit
from blockwright.tests.actors import fake_worker
from blockwright.tests.actors.test_topology import GATEWAY_ENTRY, Quiet, cluster, collect
from blockwright.tests.fake_cluster import generation, reference
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted
from blockwright.tests.waiting import until


class Guess:
    """An estimator that says 7 of everything, or the most that a request may have."""

    def estimate(self, features: Features) -> int:
        return bounded(7, features)


def bench(estimator: Any = None) -> Bench:
    made = Bench("w0")
    made.state.parts.lengths = Lengths(wanted=True)
    made.state.parts.lengths.estimator = estimator
    return made


def submission(effects: list[Any]) -> Any:
    (found,) = [effect.submission for effect in effects if isinstance(effect, Submit)]
    return found


def test_an_estimate_is_in_the_submission_and_in_the_story() -> None:
    made = bench(Guess())
    first = submission(made.generate("r", max_tokens=20, stop_tokens=[9]))
    assert first.expected == 7
    assert made.state.describe("r").events[0]["expected_tokens"] == 7
    made.report("w0", emitted("r", 1, 5, [8]))
    (again,) = [e.submission for e in made.die("w0") if isinstance(e, Submit)]
    assert again.expected == 7, "of the whole answer, whatever of it is there"
    made.report("w0", emitted("r", 2, 6, [8, 9], finish="stop"), incarnation=2)
    end = made.state.describe("r").events[-1]
    assert (end["event"], end["expected_tokens"], end["tokens"]) == ("finished", 7, 3)
    (lesson,) = made.state.parts.lengths.take()
    assert (lesson.length, lesson.whole, lesson.expected) == (3, True, 7)
    assert lesson.features.application == "m"
    assert made.state.parts.lengths.figures.accuracy.figures()["mean_error"] == 4
    assert made.state.parts.lengths.take() == []


def test_who_ends_teaches_by_how() -> None:
    made = bench(Guess())
    for name in ("limit", "client", "text", "gone"):
        made.generate(name, max_tokens=4, stop_tokens=[9])
        made.report("w0", emitted(name, 1, 5, [8, 8]))
    made.report("w0", emitted("limit", 1, 7, [8, 8], finish="length"))
    made(End("client"))
    made(End("text", stop=True))
    lessons = made.state.parts.lengths.take()
    assert [(one.length, one.whole) for one in lessons] == [(4, False), (2, True)]
    assert made.state.parts.lengths.figures.accuracy.count == 2


def test_a_stated_length_is_used_and_teaches_nothing() -> None:
    made = bench(Guess())
    least = SamplingParams(seed=7, rules=TokenRules(min_tokens=12))
    stated = {
        "endless": {"max_tokens": 20},
        "least": {"max_tokens": 12, "stop_tokens": [9], "sampling": least},
    }
    for name, wishes in stated.items():
        assert submission(made.generate(name, **wishes)).expected == wishes["max_tokens"]
        made.report("w0", emitted(name, 1, 5, [8], finish="length"))
    assert submission(made.generate("texts", max_tokens=20, stop_strings=1)).expected == 7
    assert submission(made.generate("some", max_tokens=20, stop_tokens=[9], sampling=least)).expected == 12
    assert submission(made.generate("few", max_tokens=3, stop_tokens=[9])).expected == 3
    assert made.state.parts.lengths.take() == []


def test_nothing_is_looked_at_where_nobody_wants_to_know() -> None:
    made = Bench("w0")
    assert submission(made.generate("r", stop_tokens=[9])).expected == 0
    assert made.state.parts.active["r"].features is None
    assert "expected_tokens" not in made.state.describe("r").events[0]
    made.report("w0", emitted("r", 1, 5, [9], finish="stop"))
    assert "tokens" not in made.state.describe("r").events[-1]
    assert made.state.parts.lengths.take() == []


def test_lessons_that_nobody_takes_are_bounded() -> None:
    made = bench()
    for number in range(MOST_LESSONS + 3):
        made.generate(f"r{number}", stop_tokens=[9])
        made.report("w0", emitted(f"r{number}", 1, 5, [9], finish="stop"))
    assert len(made.state.parts.lengths.take()) == MOST_LESSONS


async def test_a_cluster_learns_from_what_it_serves_and_logs_it(checkpoint: Any, tmp_path: Path) -> None:
    """From the settings to the estimate: with a gateway in the head and one of its own, workers compute no tensors."""
    folder, fate = tmp_path / "logs", fake_worker.reset()
    settings = {"tagger": "history", "tagger_folder": str(tmp_path / "kept"), "request_log": str(folder)}
    gateways = {"gateways": 2, "gateway_in_head": "yes", "http": Http(Quiet(), 0, GATEWAY_ENTRY)}
    async with cluster({"m": checkpoint()}, workers=1, **settings, **gateways) as running:
        stop = reference(generation("r", max_tokens=6))[-1]
        asked = [generation(f"r{number}", max_tokens=40, stop_tokens=[stop]) for number in range(5)]
        for stream in [running.port.generate(one) for one in asked]:  # all of them before one ends
            assert await collect(stream) == (reference(asked[0]), "stop")
        length = len(reference(asked[0]))
        await running.answering.until(bool)
        for lengths in (running.port.book.parts.lengths, fate.gateways["g1"].book.parts.lengths):
            await until(lambda lengths=lengths: lengths.expect(asked[0], "m")[1] == length)
        await collect(running.port.generate(generation("next", max_tokens=40, stop_tokens=[stop])))
        events = running.port.describe("next").events
        assert (events[0]["expected_tokens"], events[-1]["tokens"]) == (length, length)
        assert running.port.lengths().accuracy.figures() == {
            "requests": 1, "mean_error": 0, "relative_error": 0, "acc_50": 1, "acc_100": 1
        }  # fmt: skip
    assert [(one.length, one.expected) for one in read_requests(folder)] == [(length, 0)] * 5 + [(length, length)]
    assert json.loads((tmp_path / "kept" / "tagger.json").read_text())["origin"] == "history"


async def test_what_a_gateway_of_its_own_learned_last_is_kept(checkpoint: Any, tmp_path: Path) -> None:
    """The tagger is on the head, whose actors stop before other nodes: what a drain ends is reported before that."""
    fate, kept = fake_worker.reset(), tmp_path / "kept"
    settings = {
        "tagger": "history",
        "tagger_folder": str(kept),
        "gateway_in_head": "no",
        "http": Http(Quiet(), 0, GATEWAY_ENTRY),
    }
    async with cluster({"m": checkpoint()}, workers=1, **settings) as running:
        await running.answering.until(bool)
        gateway = fate.gateways["g0"]
        await until(lambda: gateway.ready)
        stop = reference(generation("r", max_tokens=6))[-1]
        await collect(gateway.generate(generation("r", max_tokens=40, stop_tokens=[stop])))
        await gateway.drain(5.0)
        assert gateway.book.parts.lengths.take() == []
    assert json.loads((kept / "tagger.json").read_text())["estimator"]["kind"] == "history"

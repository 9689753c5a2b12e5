"""Answers of variants that the listed chain scores in idle time: what is sent and when, that it gives way, what is shown."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from blockwright.actors.gateway.scoring import AnswerScoring
from blockwright.policies.adaptive.similarity import OWNER, PATIENCE, Similarity
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.book.messages import CancelAt, Closed, Deliver, End, Fail, HeartbeatReceived, Submit
from blockwright.policies.requests.book.scoring import gives_way, next_scoring
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, route, scored

OWN, STANDS_IN = route("w0"), route("w1", application="m~1")
CHAINS = [chain("m"), replace(chain("m~1"), variant_of="m")]
SHORT = 3
ANSWER = [4, 5, 6, 7]
SCORES = [TokenLogprob(-1.0 * rank, [], rank) for rank in (9, 9, 1, 1, 2, 1)]  # of all tokens but the first


class Shell:
    """A gateway's shell without streams of clients. ``effects``: of the last event."""

    def __init__(self, share: float) -> None:
        self.bench = Bench("w0", "w1", routes=[OWN, STANDS_IN], chains=CHAINS, similarity_share=share)
        self.parts = self.bench.state.parts
        self.streams: dict[str, Any] = {}
        self.effects: list[Any] = []
        self.scoring = AnswerScoring(self.parts, self._begin, lambda request, stop: self.handle(End(request, stop)))
        self.credit()

    def _begin(self, generation: Any, stream: Any) -> Any:
        self.streams[generation.id] = stream
        self.handle(generation)
        return stream

    def handle(self, event: Any, now: float = 0.0) -> list[Any]:
        self.effects = self.bench(event, now)
        return self._perform()

    def report(self, worker: str, *news: Any) -> list[Any]:
        self.effects = self.bench.report(worker, *news)
        return self._perform()

    def _perform(self) -> list[Any]:
        for effect in self.effects:
            match effect:
                case Deliver(news) if news.request in self.streams:
                    self.streams[news.request].put(news)
                case Closed(request) if request in self.streams:
                    self.streams.pop(request).close()
                case Fail(request, refused) if request in self.streams:
                    self.streams.pop(request).fail(refused)
        return self.effects

    def credit(self) -> None:
        rooms = [OfflineCapacity(("m", "m~1"), 4, 1000, 2000)]
        self.handle(HeartbeatReceived("w0", 1, self.bench.serials.get(("w0", 1), 0), rooms))

    def answered(self, name: str, salt: bytes = b"") -> None:
        """Have a variant answer: another request is on the worker of the model's own chain."""
        self.bench.generate("other" + name, SHORT, adaptive=False)
        self.bench.generate(name, SHORT, max_tokens=len(ANSWER), salt=salt)
        self.bench.report("w1", emitted(name, 1, SHORT, ANSWER, finish="length"))
        self.bench.report("w0", emitted("other" + name, 1, SHORT, [9] * 4, finish="length"))

    def similarity(self, name: str) -> Any:
        view = self.bench.state.describe(name)
        assert view is not None, "it has ended lately"
        return [one["similarity"] for one in view.chains]


@claim("A part of the answers by variants is scored by the listed chain, and each shows its similarity", of="adaptive")
def test_the_listed_chain_scores_the_tokens_that_a_variant_gave() -> None:
    shell = Shell(1.0)
    shell.answered("a", salt=b"one's own")
    assert shell.similarity("a") == [None]
    shell.scoring.tick(0.0)
    (sent,) = [one for one in shell.effects if isinstance(one, Submit)]
    made = sent.submission
    assert (sent.worker, made.tokens[SHORT:], made.route) == ("w0", ANSWER, OWN.id)
    assert (made.sampling.prompt_logprobs, made.tenant, made.salt) == (0, ":offline", b"one's own")
    shell.report("w0", scored(made.request, 1, 1, SCORES))
    assert shell.similarity("a") == [{"answers": 1, "tokens": 4, "agreed": 0.75, "logprob": -1.25}]
    assert shell.parts.choices.figures.similarity == {("m", "m~1"): Similarity(1, 4, 3, -5.0)}
    shell.report("w0", emitted(made.request, 1, len(made.tokens), [8], finish="length"))
    assert not shell.parts.active
    assert shell.bench.state.describe(made.request).key == OWNER
    assert sum(shell.parts.choices.figures.variants.values()) == 2, "only requests of clients count"
    shell.scoring.tick(1.0)
    assert not [one for one in shell.effects if isinstance(one, Submit)], "there is no other answer"


def test_it_waits_while_a_request_runs_on_the_workers_of_the_listed_chain_or_waits_for_one() -> None:
    shell = Shell(1.0)
    shell.answered("a")
    shell.bench.generate("b", SHORT, adaptive=False)
    assert next_scoring(shell.parts, 1.0) is None
    shell.report("w0", emitted("b", 1, SHORT, [9] * 4, finish="length"))
    shell.parts.draining = True
    assert next_scoring(shell.parts, 1.0) is None
    shell.parts.draining = False
    assert next_scoring(shell.parts, 1.0) is not None


@claim("Scoring by the listed chain gives way before another request is sent", of="adaptive")
def test_it_gives_way_to_a_request_and_is_tried_again() -> None:
    shell = Shell(1.0)
    shell.answered("a")
    shell.scoring.tick(0.0)
    (first,) = [one.submission.request for one in shell.effects if isinstance(one, Submit)]
    assert not gives_way(shell.parts, 0.1)
    shell.bench.generate("b", SHORT, adaptive=False)
    assert gives_way(shell.parts, 0.1)
    shell.scoring.tick(0.1)
    assert CancelAt("w0", (first,)) in shell.effects
    assert [*shell.parts.active] == ["b"]
    shell.report("w0", emitted("b", 1, SHORT, [9] * 4, finish="length"))
    shell.credit()
    shell.scoring.tick(0.2)
    (second,) = [one.submission for one in shell.effects if isinstance(one, Submit)]
    assert second.request != first
    shell.report("w0", scored(second.request, 1, 1, SCORES))
    assert shell.similarity("a") == [{"answers": 1, "tokens": 4, "agreed": 0.75, "logprob": -1.25}]
    shell.report("w0", scored(second.request, 1, 1, SCORES))
    assert shell.parts.choices.figures.similarity == {("m", "m~1"): Similarity(1, 4, 3, -5.0)}, "scores count once"


def test_an_answer_without_credit_or_with_a_failure_makes_room_for_others() -> None:
    shell = Shell(1.0)
    shell.handle(HeartbeatReceived("w0", 1, 0, [OfflineCapacity(("m",), 0, 0, 2000)]))
    shell.answered("a")
    shell.scoring.tick(0.0)
    assert not [one for one in shell.effects if isinstance(one, Submit)]
    shell.scoring.tick(PATIENCE + 0.1)
    assert [record.id for record in shell.parts.active.values()] == ["similarity-a-1"]
    shell.handle(HeartbeatReceived("w0", 1, 0, [OfflineCapacity(("m",), 1, 900, 2000)]))
    shell.bench.die("w0", back=False)
    shell.scoring.tick(PATIENCE + 0.2)
    assert len(shell.parts.active) <= 1


@claim("With similarity_share=0 all effects are as without, and so are those of requests while answers wait", of="adaptive")
def test_effects_for_other_requests_are_as_without() -> None:
    random, shells = Random(5), [Shell(share) for share in (0.0, 1.0)]
    for number in range(60):
        prompt, most = random.randint(1, 20), random.randint(1, 9)
        for shell in shells:
            shell.scoring.give_way()
        one, two = (shell.bench.generate(f"r{number}", prompt, most, salt=b"%d" % number) for shell in shells)
        assert one == two
        for shell in shells:  # busy all the time
            shell.scoring.tick(0.0)
        if number:
            for made in (shells[0].parts.active, shells[1].parts.active):
                assert not any(name.startswith("similarity") for name in made)
            name = f"r{number - 1}"
            if (record := shells[0].parts.active.get(name)) is not None:
                worker, begins = record.placement.workers[0], record.progress.begins
                done = emitted(name, 1, begins, [9] * record.progress.limit, finish="length")
                assert shells[0].bench.report(worker, done) == shells[1].bench.report(worker, done)
    assert [len(shell.parts.scoring) > 0 for shell in shells] == [False, True]

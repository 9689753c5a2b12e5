"""Log-probabilities as they are served, bit for bit, in both types: whatever a server does beside and before a request, they
are those of the request alone.

What is compared came over HTTP with all its digits. Alone means: one request after the other, on a server that keeps nothing
of those before. Killed workers and pipelines are real processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve, tight
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import some
from blockwright.tests.system.client import Answer, Client, body
from blockwright.tests.system.conftest import FAULTY, PACE, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

Checkpoints = Callable[..., Path]
Scored = tuple[list[int], list[Any]]  # tokens, and of each its log-probability and the best ones
COUNT = 32
LONGEST = 340  # tokens of prompt and answer
ANCHORS = 2  # requests of a load that last until all others have come
PROMPTS = [1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 129, 200, 255, 256, 257, 300]
# llama is what most models are; this gemma2 has windows and capped scores
CASES = {
    "llama-bfloat16": ("llama", "bfloat16", {}),
    "gemma2-float32": ("gemma2", "float32", {"sliding_window": 48}),
}


def request(index: int) -> dict[str, Any]:
    """Greedy or sampled; prompts and answers of many lengths, in pairs whose prompts begin alike."""
    new = 300 if index < ANCHORS else 12 + index % 7
    return body(index, new, prompt_of(PROMPTS[index * 5 % len(PROMPTS)], seed=index // 16), logprobs=3)


REQUESTS = [request(index) for index in range(COUNT)]


class Case:
    """A model in a type, and what its requests get when they are alone."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, dtype
        self.expected: list[Scored] = asyncio.run(self._alone())

    async def _alone(self) -> list[Scored]:
        async with self.serve(prefix_cache=False) as server:
            return [await scored(server, fields) for fields in REQUESTS]

    def serve(self, **settings: Any) -> Any:
        chosen: dict[str, Any] = {"dtype": self.dtype, "backend": "native", "max_model_len": LONGEST, **settings}
        return serve({"m": self.path}, **chosen)

    def check(self, answers: Sequence[Answer]) -> None:
        for index, (answer, (tokens, logprobs)) in enumerate(zip(answers, self.expected, strict=True)):
            assert (answer.error, answer.finish, answer.done) == (None, "length", True), index
            assert answer.tokens == tokens, index
            assert answer.logprobs == logprobs, index


async def scored(server: Served, fields: dict[str, Any]) -> Scored:
    """One answer that is not streamed."""
    asked = dict(fields)
    choice = await server.complete(asked.pop("prompt"), asked.pop("max_tokens"), **asked)
    columns = choice["logprobs"]
    return choice["token_ids"], list(zip(columns["token_logprobs"], columns["top_logprobs"], strict=True))


@pytest.fixture(scope="module", params=some(CASES, "llama-bfloat16"))
def case(request: pytest.FixtureRequest, checkpoint: Checkpoints) -> Case:
    architecture, dtype, config = CASES[request.param]
    return Case(checkpoint(architecture, dtype="bfloat16", **config), dtype)


@pytest.fixture
def processes(case: Case, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """``processes(**settings)``: two workers whose sweeps take a while, so that requests meet."""
    pace = tmp_path / "pace.json"
    pace.write_text(f'{{"base": {PACE}}}')
    servers: list[Server] = []

    def start(**settings: Any) -> Server:
        chosen: dict[str, Any] = {"dtype": case.dtype, "backend": "native", "max_model_len": LONGEST, "chunk_size": 64}
        servers.append(Server(case.path, module=FAULTY, pace=pace, **chosen, **settings))
        return servers[-1].whole()

    yield start
    for server in servers:
        server.stop()


async def joining(client: Client) -> list[Answer]:
    """All requests: each comes when one before it has some tokens, guests go away in the middle; the first ones last as
    long as that takes."""
    with slow(client.server, after=150):
        answers = [client.begin(fields) for fields in REQUESTS[:ANCHORS]]
        for index, fields in enumerate(REQUESTS[ANCHORS:]):
            before = answers[max(0, len(answers) - 3)]
            await until(lambda before=before: len(before.tokens) >= 2)
            answers.append(client.begin(fields))
            if index % 5 == 0:
                guest = client.begin(body(100 + index, 100, prompt_of(70 + index, seed=9)))
                await until(lambda guest=guest: guest.tokens)
                await client.leave(guest)
                assert guest.finish is None
        assert not any(answer.finish for answer in answers[:ANCHORS])
    await client.finished()
    return answers


@claim("Answers keep their tokens through pipelines, replicas, cached prefixes and preemption", of="numerics")
@pytest.mark.system
async def test_replicas(case: Case, processes: Callable[..., Server]) -> None:
    """Requests that join late and leave early; then kill -9 of a worker while all of them run."""
    async with Client(processes()) as client:
        before = await client.ready()
        case.check(await joining(client))
        assert (await client.get("/version"))[1]["batch_invariant"] is True
        with slow(client.server):
            answers = [client.begin(fields) for fields in REQUESTS]
            await until(lambda: all(len(answer.tokens) >= 2 for answer in answers))
            assert not any(answer.finish for answer in answers)
            await client.kill("w0")
        await client.finished()
        case.check(answers)
        assert (await client.ready())["w0"]["pid"] != before["w0"]["pid"]
        views = [await client.request(answer.name) for answer in answers]
        assert 0 < sum(view["attempt"] > 1 for view in views if view) < COUNT


@claim("Answers keep their tokens through pipelines, replicas, cached prefixes and preemption", of="numerics")
@claim("A model serves as a pipeline over several workers with the same tokens", of="serving")
@pytest.mark.nightly
@pytest.mark.system
async def test_a_pipeline(case: Case, processes: Callable[..., Server]) -> None:
    async with Client(processes(pipeline=2)) as client:
        await client.ready()
        case.check(await joining(client))


@claim("Answers keep their tokens through pipelines, replicas, cached prefixes and preemption", of="numerics")
async def test_pages_that_other_prompts_and_answers_wrote(case: Case) -> None:
    """A prompt, then longer and shorter ones that begin alike, and its answer in a prompt: each as on a fresh server."""
    long = list(prompt_of(300, seed=3))
    first = {**REQUESTS[0], "prompt": long[:150], "max_tokens": 40}

    def follow(answer: Sequence[int]) -> list[dict[str, Any]]:
        ends = (
            long,
            long[:97],
            long[:145] + long[3:80],
            long[:150] + list(answer),
            long[:150] + list(answer)[:37] + long[:60],
        )
        return [{**REQUESTS[index], "prompt": prompt, "max_tokens": 6} for index, prompt in enumerate(ends)]

    async with case.serve() as server:
        answer, _ = await scored(server, first)
        warm = []
        for fields in follow(answer):
            before = await server.counters("cached_tokens")
            warm.append(await scored(server, fields))
            assert await server.counters("cached_tokens") > before
    for fields, found in zip(follow(answer), warm, strict=True):
        async with case.serve() as fresh:
            assert await scored(fresh, fields) == found


@claim("Answers keep their tokens through pipelines, replicas, cached prefixes and preemption", of="numerics")
@pytest.mark.parametrize(("stages", "part"), [(1, 1.0), (2, 0.6)])
async def test_preempted_sequences(case: Case, stages: int, part: float) -> None:
    """Over a pipeline leases grow, and hosts revoke some of them."""
    memory = int(part * tight(case.path, 16, LONGEST, dtype=case.dtype))
    async with case.serve(memory=memory, workers=stages, pipeline=stages) as server:
        found = await asyncio.gather(*(scored(server, fields) for fields in REQUESTS))
        assert await server.counters("preemptions") > 0
    assert found == case.expected

"""Lines as one offline job of this process: each is answered once, by the endpoints' own code, on its worker and side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import Credit, Generation
from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.batches.lines import BatchLine, LineAnswer
from blockwright.api.batches.local_job import LocalJob
from blockwright.api.http.auth import ApiCaller
from blockwright.api.http.context import FRONT
from blockwright.api.openai.completions import COMPLETIONS
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import FakePort, Step, one_by_one


class Job:
    """Lines to a fake gateway, whose every answer is its prompt's last token, thrice."""

    def __init__(self, folder: Path, bodies: Sequence[dict[str, Any]]) -> None:
        self.port = FakePort(folder, self.script)
        self.front = make_app(self.port, Settings(applications={"tiny": str(folder)}))[FRONT]
        self.bodies, self.kept = bodies, dict[int, LineAnswer]()
        self.busy = 0
        self.failures: Iterator[int] = iter(())  # numbers of the load failures that are met
        self.job = LocalJob(self.front, ApiCaller(), self.line, self.keep, share=0.0)

    def script(self, generation: Generation) -> Sequence[Step]:
        if self.busy:
            self.busy -= 1
            return [RequestRefused(Refusal.OVERLOADED, "there is no room", retry_after=0.001)]
        if (failure := next(self.failures, 0)) > 0:
            return [RequestRefused(Refusal.UNAVAILABLE, "its tensor is damaged", 0.001, failure=failure)]
        return one_by_one([generation.prompt[-1]] * 3)

    def line(self, number: int) -> BatchLine:
        return BatchLine(str(number), COMPLETIONS, self.bodies[number])

    def keep(self, number: int, answer: LineAnswer) -> None:
        assert number not in self.kept, "it is answered twice"
        self.kept[number] = answer

    async def run(self, done: dict[int, int] | None = None) -> None:
        await self.job.check(range(len(self.bodies)), done or {}, lambda count: None)
        await self.job.run(done or {})

    def tokens(self, number: int) -> Any:
        return json.loads(self.kept[number].body)["choices"][0]["token_ids"]


def body(*prompt: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [*prompt], "max_tokens": 3, "return_token_ids": True, **more}


async def test_every_line_is_answered_on_its_worker_and_side(folder: Path) -> None:
    job = Job(folder, [body(7, 8, 10 + n) for n in range(9)])
    job.port.credit = [Credit(worker=name, rows=1, positions=100, room=100) for name in ("w0", "w1")]
    await job.run()
    assert {number: job.tokens(number) for number in range(9)} == {n: [10 + n] * 3 for n in range(9)}
    sent = [stream.generation for stream in job.port.streams]
    assert {one.home for one in sent} == {"w0", "w1"}
    assert all(one.offline and one.side in ("left", "right") for one in sent)
    (progress,) = job.job.progress()
    assert (progress.done, progress.done_tokens, progress.prompt_tokens) == (9, 9 * 6, 27)


async def test_lines_that_are_refused_get_their_errors_and_the_others_go_on(folder: Path) -> None:
    job = Job(folder, [body(7), body(), body(8, model="nobody"), body(9, max_tokens=1000), body(5, temperature=9)])
    await job.run()
    assert {number: answer.status for number, answer in job.kept.items()} == {0: 200, 1: 400, 2: 404, 3: 400, 4: 400}


async def test_what_is_answered_already_is_not_computed_again(folder: Path) -> None:
    job = Job(folder, [body(7, n) for n in range(4)])
    await job.run(done={1: 3, 2: 3})
    assert sorted(job.kept) == [0, 3]
    assert len(job.port.streams) == 2
    assert job.job.progress()[0].done == 4


async def test_several_applications_and_choices_are_one_job_each(folder: Path) -> None:
    job = Job(folder, [body(7), body(8, model="org/other"), body(9, n=2)])
    await job.run()
    assert sorted(job.kept) == [0, 1, 2]
    assert sorted(one.total for one in job.job.progress()) == [1, 2]
    assert len(json.loads(job.kept[2].body)["choices"]) == 2


async def test_a_line_for_which_there_is_no_room_is_asked_again(folder: Path) -> None:
    job = Job(folder, [body(7), body(8)])
    job.busy = 1
    await job.run()
    assert sorted(job.kept) == [0, 1]
    assert job.job.progress()[0].given_back == 1


async def test_what_cannot_be_kept_ends_the_job(folder: Path) -> None:
    job = Job(folder, [body(7), body(8)])

    def full(number: int, answer: LineAnswer) -> None:
        raise OSError("no space")

    failing = LocalJob(job.front, ApiCaller(), job.line, full)
    await failing.check(range(2), {}, lambda count: None)
    with pytest.raises(OSError, match="no space"):
        await failing.run({})
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_model_that_fails_to_load_is_tried_again_before_its_lines_fail(folder: Path) -> None:
    job = Job(folder, [body(7), body(8)])
    job.failures = iter([1, 2, 2, 3])
    await job.run()
    assert {number: answer.status for number, answer in job.kept.items()} == {0: 200, 1: 200}
    job = Job(folder, [body(7), body(8)])
    job.failures = iter(range(1, 99))
    await job.run()
    assert {number: answer.status for number, answer in job.kept.items()} == {0: 503, 1: 503}
    assert len(job.port.streams) == 7, "the sixth failure is not waited for, nor is the next"
    assert b"its tensor is damaged" in job.kept[1].body

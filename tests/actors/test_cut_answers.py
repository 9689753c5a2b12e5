"""A worker remembers answers that were cut off, and goes on with one by a prefill of less than a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.actors.worker.cut_answers import WAIT, CutAnswers
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.remembered import AnswerKey, answer_key
from blockwright.policies.sweep.events import PeerLost
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import until

NEW = 60
SAMPLED = SamplingParams(temperature=0.8, seed=11)


async def running(rig: Rig, name: str, sampling: SamplingParams) -> None:
    await rig.submit(name, list(prompt_of(9, seed=3)), NEW, sampling=sampling)
    await until(lambda: len(rig.record.tokens[name]) > 20, "it has some tokens")


def key_of(rig: Rig, sampling: SamplingParams) -> AnswerKey:
    return answer_key(f"a {rig.worker.backend.numerics}", prompt_of(9, seed=3), sampling, [], b"")


@pytest.mark.parametrize("lost", [False, True], ids=["cancelled", "gateway lost"])
async def test_an_answer_that_was_cut_off_goes_on_without_being_computed_again(
    checkpoint: Callable[..., Path], lost: bool
) -> None:
    rig = await Rig.start([checkpoint("llama")], page_size=8, resume_window=30.0)
    truth = await rig.generate("whole", list(prompt_of(9, seed=3)), NEW, sampling=SAMPLED)
    assert await rig.ref.remembered(key_of(rig, SAMPLED), "r0") == [], "an answer that has ended is forgotten"
    other = replace(SAMPLED, seed=12)
    truth = await rig.generate("whole2", list(prompt_of(9, seed=3)), NEW, sampling=other)
    await running(rig, "r0", other)
    if lost:
        rig.worker._cut.lost("w0")
        rig.worker._apply(PeerLost("w0"))
    else:
        await rig.ref.cancel(["r0"])
    found = await rig.ref.remembered(key_of(rig, other), "r0")
    assert 20 < len(found) < NEW
    assert found == truth[: len(found)]
    assert await rig.ref.remembered(key_of(rig, replace(other, choice=1)), "r0") == []
    await rig.stop()


async def test_a_question_waits_for_the_end_of_its_sequence(checkpoint: Callable[..., Path]) -> None:
    """The clients of a dead gateway may be quicker than the news of its death."""
    rig = await Rig.start([checkpoint("llama")], resume_window=30.0)
    cut = rig.worker._cut
    await running(rig, "r0", SAMPLED)
    looks = list[float]()

    async def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            await rig.ref.cancel(["r0"])
            await rig.quiet()

    key = key_of(rig, SAMPLED)
    assert len(await cut.find(key, "r0", sleep)) > 20
    assert len(looks) == 3
    assert await cut.find(key, "another", sleep), "whoever could compute it may have it"
    await rig.stop()


async def test_it_does_not_wait_for_ever_and_remembers_nothing_without_a_window(checkpoint: Callable[..., Path]) -> None:
    rig = await Rig.start([checkpoint("llama")], resume_window=0.0)
    await running(rig, "r0", SAMPLED)
    now = [0.0]
    cut = CutAnswers(rig.worker.state, 30.0, lambda: now[0], lambda: rig.worker.backend.numerics)

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    key = key_of(rig, SAMPLED)
    assert await cut.find(key, "r0", sleep) == []
    assert WAIT <= now[0] < WAIT + 0.5
    await rig.ref.cancel(["r0"])
    await rig.quiet()
    assert await rig.ref.remembered(key, "r0") == []
    await rig.stop()

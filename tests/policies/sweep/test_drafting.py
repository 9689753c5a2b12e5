"""Drafts change no token, whatever else happens to a sequence; and a plan is made ahead only when no row waits for one."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.events import DraftsVerified, Submission
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base", 2)
ROUTE = "base@w0"


def guessed(prompt: list[int], limit: int, stop: list[int], wrong: int, chance: random.Random) -> list[int]:
    """The answer, of which one token in ``wrong`` is changed."""
    return [token if chance.randrange(wrong) else token + 1 for token in generate("base", prompt, limit, stop)]


def world(**config: object) -> World:
    return World(["w0"], [BASE], [replica("w0", BASE)], **config)  # type: ignore[arg-type]


def asked(name: str, prompt: list[int], limit: int, options: DraftOptions | None, **more: object) -> Submission:
    return submission(name, prompt, limit, ROUTE, drafts=options, **more)


class Listening(World):
    """Keeps what was said of drafts."""

    def hear(self, effects: list[object]) -> list[object]:
        self.rounds = [*getattr(self, "rounds", []), *[e for e in effects if isinstance(e, DraftsVerified)]]
        return effects


@pytest.mark.parametrize("seed", range(40))
def test_tokens_are_those_without_drafts(seed: int) -> None:
    """Short memory preempts, stop tokens cut rounds, pages run out, and rows without drafts run beside."""
    chance = random.Random(seed)
    tight = {"budget": chance.choice([24, 32, 80]) * 64 * 1024, "max_rows": chance.choice([2, 4, 16])}
    played = world(**tight, sweep_tokens=chance.choice([8, 64]), prefix_cache=chance.random() < 0.7)
    want = {}
    for number in range(8):
        prompt = [chance.randrange(50) for _ in range(chance.randrange(1, 20))]
        limit, stop = len(prompt) + chance.randrange(1, 25), [chance.randrange(50)]
        text = guessed(prompt, limit, stop, chance.choice([1 << 30, 8, 2, 1]), chance)
        options = chance.choice([None, DraftOptions(prompt=True), DraftOptions(True, chance.randrange(5), text)])
        name = f"r{number}"
        want[name] = generate("base", prompt, limit, stop)
        played.submit(asked(name, prompt, limit, options, stop=stop, arrival=float(number), tenant=f"t{number % 2}"))
        if chance.random() < 0.2:
            played.run(seed, limit=200) if chance.random() < 0.5 else None
    played.run(seed)
    assert played.emitted == want
    assert played.finished.keys() == want.keys()
    played.assert_quiet()


@pytest.mark.parametrize("workers", [["w0", "w1"], ["w0", "w1", "w2"]])
@pytest.mark.parametrize("seed", range(15))
def test_drafts_travel_with_flights(workers: list[str], seed: int) -> None:
    """The last worker of a route verifies what its home drafted; little memory preempts and revokes leases."""
    chance = random.Random(seed)
    whole, local = pipeline(workers, BASE), replica("w0", BASE)
    played = Listening(workers, [BASE], [whole, local], budget=chance.choice([32, 80]) * 64 * 1024, max_rows=4)
    want = {}
    for number in range(8):
        prompt = [chance.randrange(50) for _ in range(chance.randrange(1, 20))]
        limit, stop = len(prompt) + chance.randrange(1, 25), [chance.randrange(50)]
        text = guessed(prompt, limit, stop, chance.choice([1 << 30, 8, 2]), chance)
        options = chance.choice([None, DraftOptions(True, chance.randrange(5), text), DraftOptions(True, 0, text)])
        name = f"r{number}"
        want[name] = generate("base", prompt, limit, stop)
        route = whole if number % 4 else local
        more = {"stop": stop, "arrival": float(number), "drafts": options}
        played.submit(submission(name, prompt, limit, route.id, **more))
        if number % 3 == 2:
            played.move(f"r{number - 1}", local.id) if f"r{number - 1}" not in played.finished else None
    played.run(seed)
    assert played.emitted == want
    assert sum(one.accepted for one in played.rounds) > 0
    played.assert_quiet()


def test_a_right_prediction_takes_fewer_sweeps() -> None:
    prompt, limit = [1, 2, 3], 43
    answer = generate("base", prompt, limit, [])
    sweeps = []
    for options in (None, DraftOptions(tokens=4, prediction=answer)):
        played = world()
        played.submit(asked("r", prompt, limit, options))
        played.run()
        assert played.emitted["r"] == answer
        sweeps.append(played.workers["w0"].state.number - 1)
    # one sweep of the prompt, and one at the end that gives memory back: 39 of a token, or seven of five and one of four
    assert sweeps == [41, 10]


def test_what_was_drafted_is_reported_before_its_tokens() -> None:
    prompt = [5, 6]
    answer = generate("base", prompt, 12, [])
    wrong = [*answer[:6], 99, *answer[7:]]
    played = Listening(["w0"], [BASE], [replica("w0", BASE)])
    played.submit(asked("r", prompt, 12, DraftOptions(tokens=3, prediction=wrong)))
    played.run()
    assert [(one.source, one.drafted, one.accepted) for one in played.rounds] == [
        ("prediction", 3, 3),
        ("prediction", 3, 1),  # the second is 99, in place of which another token was drawn
        ("prediction", 2, 2),
    ]
    counters = played.workers["w0"].state.counters
    assert (counters["drafted_tokens"], counters["accepted_tokens"]) == (8, 6)


def test_no_plan_is_made_ahead_of_a_round() -> None:
    played, worker = (one := world()), one.workers["w0"]
    played.submit(asked("r", [1, 2], 20, DraftOptions(tokens=2, prediction=generate("base", [1, 2], 20, []))))
    played.submit(asked("other", [3, 4], 20, None))
    assert played.start_plan(worker)  # both prompts
    assert not played.start_plan(worker)
    assert played.end_plan(worker)
    assert played.start_plan(worker)
    plan = worker.open[0][0]
    assert sorted(plan.count) == [1, 3]
    assert len(plan.verify) == 1
    assert plan.drawn == 4
    assert not played.start_plan(worker)
    played.run()
    played.assert_quiet()


def test_a_forecast_plays_without_drafts() -> None:
    played, worker = (one := world()), one.workers["w0"]
    played.submit(asked("r", [1, 2], 20, DraftOptions(tokens=2, prediction=generate("base", [1, 2], 20, []))))
    played.start_plan(worker)
    played.end_plan(worker)
    played.start_plan(worker)  # a round is open
    fork = worker.state.fork()
    assert fork.snapshot() == worker.state.snapshot()
    fork.without_device()
    open_plan = worker.open[0][0]
    fork.commit(open_plan, SweepResult(open_plan.number, [0] * len(open_plan.sample)), 0.0)
    fork.check()
    assert fork.parts.rows.length[0] == 4  # the round yields the token that it draws in any case
    plan = fork.plan(0.0)
    assert plan is not None
    assert plan.count == [1]
    assert fork.repeat(plan) == 20 - 4
    played.run()
    assert played.emitted["r"] == generate("base", [1, 2], 20, [])


@pytest.mark.parametrize("cut", range(12))
def test_a_restored_state_goes_on_alike(cut: int) -> None:
    played, worker = (one := world()), one.workers["w0"]
    text = generate("base", [1, 2, 3], 30, [])
    text[5] += 1
    played.submit(asked("r", [1, 2, 3], 30, DraftOptions(True, 0, text)))
    for _ in range(cut):
        played.start_plan(worker) or played.end_plan(worker)
    again = SweepState.restore(worker.state.snapshot())
    assert again.digest() == worker.state.digest()
    plans: list[tuple[SweepPlan | None, SweepPlan | None]] = []
    while worker.state.parts.rows.live():
        if worker.open:
            plan, result = worker.open[0]
            again.commit(plan, result, 0.0)
            again.take_effects()
            played.end_plan(worker)
        mine = again.plan(0.0)
        again.take_effects()
        played.start_plan(worker)
        theirs = worker.open[-1][0] if worker.open else None
        plans.append((mine, theirs))
        assert again.digest() == worker.state.digest()
    assert all(mine == theirs for mine, theirs in plans)
    assert played.emitted["r"] == generate("base", [1, 2, 3], 30, [])


def test_an_overflow_behind_drafts_that_stand_ends_the_sequence_after_them() -> None:
    played, worker = (one := world()), one.workers["w0"]
    answer = generate("base", [1, 2], 20, [])
    worker.device.overflows["r"] = 7
    played.submit(asked("r", [1, 2], 20, DraftOptions(tokens=8, prediction=answer)))
    played.run()
    assert played.emitted["r"] == answer[:5]
    assert "at token 8 of the sequence" in played.returned[0].reason
    played.assert_quiet()

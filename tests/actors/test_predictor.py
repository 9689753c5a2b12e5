"""A predictor follows its worker through whatever happens to the two, and answers as long as it has a replica."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from blockwright.actors.predictor.messages import Query
from blockwright.policies.prediction.candidate import Candidate
from blockwright.policies.sweep.events import Cancelled
from blockwright.tests.actors.predictor_rig import PredictorRig
from blockwright.tests.claims import claim
from blockwright.tests.policies.sweep_world import submission
from blockwright.tests.waiting import until


def query(rig: PredictorRig, **more: bool) -> Query:
    route = rig.worker.driver.route.id
    return Query(submission("new", [1, 2, 3], 9, route), route, **more)


async def ask(rig: PredictorRig, **more: bool) -> Candidate | None:
    found: Candidate | None = await rig.ref.ask(query(rig, **more))
    return found


async def test_it_answers_with_the_load_and_with_what_was_asked_for() -> None:
    async with PredictorRig() as rig:
        rig.worker.driver.submit(6)
        rig.worker.driver.turn()
        await rig.follows()
        found = await ask(rig)
        assert found is not None
        assert (found.home, found.running, found.waiting) == ("w0", rig.worker.state.running, rig.worker.state.waiting)
        assert found.forecast is not None
        assert 0 < found.forecast.first_token < found.forecast.last_token
        without = await ask(rig, delays=False)
        assert without is not None
        assert without.forecast is not None
        assert without.forecast.last_token == pytest.approx(found.forecast.last_token, abs=1.0)
        load = await ask(rig, forecast=False)
        assert load is not None
        assert load.forecast is None
        assert await rig.ref.ask(Query(query(rig).submission, "m@w7")) is None, "it has no such route"
        assert rig.predictor.figures()["forecasts"] == 2


async def test_a_request_that_was_lost_on_its_way_is_not_expected_once_it_is_cancelled_or_asked_about_again() -> None:
    async with PredictorRig() as rig:
        lost, gone = (replace(query(rig).submission, request=name) for name in ("lost", "gone"))
        for one in (lost, gone):
            await rig.ref.placed(one)
        found = await ask(rig)
        assert found is not None
        assert found.in_flight == 2
        again: Candidate | None = await rig.ref.ask(replace(query(rig), submission=replace(lost, attempt=2)))
        assert again is not None
        assert again.in_flight == 1
        rig.worker.machine.apply(Cancelled("gone"), 0.0)
        await until(lambda: not rig.predictor.figures()["in_flight"])


@claim("A predictor's replica is the state of its worker, under random faults", of="prediction")
async def test_a_replica_that_differs_is_thrown_away(caplog: pytest.LogCaptureFixture) -> None:
    async with PredictorRig() as rig:
        rig.worker.driver.submit(6)
        await rig.follows()
        rig.worker.state.apply(Cancelled("r0"), rig.worker.driver.now)  # its feed does not tell of that
        with caplog.at_level(logging.WARNING):
            rig.worker.driver.turn()
            await until(lambda: rig.predictor.figures()["feeds"] == 2)
        await rig.follows()
        assert rig.predictor.figures()["disagreements"] == 1
        assert "the replica of w0 differs and starts again: the worker made PlanMade(" in caplog.text
        assert await ask(rig) is not None


async def test_it_waits_for_the_next_life_of_its_worker() -> None:
    async with PredictorRig() as rig:
        await rig.node.kill_actor(rig.life)
        await until(lambda: not rig.predictor.figures()["replica"])
        assert await ask(rig) is None
        await rig.begin()
        rig.worker.driver.submit(3)
        await rig.follows()
        assert await ask(rig) is not None
        assert rig.predictor.figures()["disagreements"] == 0

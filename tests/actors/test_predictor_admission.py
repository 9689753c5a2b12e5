"""Processes of predictors that join: taken in or refused, and told which workers to predict, as workers come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockwright.actors.conditions import Published
from blockwright.actors.member_calls import JoinRefused
from blockwright.actors.node_news import UNASKED, take_over_predictors, tell_of_nodes, tell_of_predictors
from blockwright.actors.predictor.admission import PREDICTOR_ADMISSION, PredictorAdmission
from blockwright.actors.predictor.coverage import Coverage
from blockwright.actors.predictor.joined import enlist
from blockwright.actors.predictor.messages import NODE
from blockwright.actors.settings.settings import Settings
from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.actors.joining_rig import JoiningHead
from blockwright.tests.claims import claim
from blockwright.tests.waiting import until


class Told(Actor):
    """The controller, as far as it is told of dispatchers."""

    def __init__(self) -> None:
        self.last: list[str] = []

    @endpoint(urgent=True)
    async def dispatchers(self, addresses: list[str]) -> None:
        self.last = addresses


class Joining(JoiningHead):
    """A head that takes predictors in."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings(
            applications={"m": "x"}, workers=1, dispatch="ours", dispatchers=2, listen="tcp://h:1", head_keys="k"
        )
        self.told = Told()
        self.places: dict[str, dict[str, str]] = {}

    async def admit(self) -> None:
        await self.cluster.node.spawn(self.told, name="controller")
        admission = PredictorAdmission(self.cluster, self.settings, {"g1"}, "head/controller")
        await self.cluster.node.spawn(admission, name=PREDICTOR_ADMISSION)
        tell_of_predictors(self.cluster, self.settings, ["w0"])

    async def begin_anew(self) -> PredictorAdmission:
        """Forget all that this head knows of predictors, as the next head does; the members have come back to it."""
        for name in ("controller", PREDICTOR_ADMISSION):
            await self.cluster.node.despawn(name)
        self.told = Told()
        await self.cluster.node.spawn(self.told, name="controller")
        for member in self.cluster.members().values():
            member.adopted = True
        admission = PredictorAdmission(self.cluster, self.settings, {"g1"}, "head/controller")
        await self.cluster.node.spawn(admission, name=PREDICTOR_ADMISSION)
        return admission

    async def predictors(self, name: str) -> Node:
        """A process of predictors that is up."""
        node = await self.node(name, "predictor")
        await enlist(node, {"rack": "b"})
        places = self.places.setdefault(name, {})
        await node.spawn(Coverage({}, places, labels={"rack": "b"}), name="coverage")
        node.peering.announce_ready()
        return node


@pytest.fixture
async def joining() -> AsyncIterator[Joining]:
    async with Joining().running() as made:
        yield made


def predicted(node: Node) -> set[str]:
    return {actor.name for actor in node.inspect().actors if actor.name.startswith("predictor-")}


@claim("Predictors on other machines join with a text, and predict the workers that joined", of="prediction")
async def test_workers_that_joined_are_covered_by_those_who_are_there(joining: Joining) -> None:
    px = await joining.predictors("px")
    far = await joining.node("far", "worker")
    far.peering.announce_ready()
    await until(lambda: predicted(px) == {"predictor-far"}, "it predicts the worker that joined")
    assert joining.places["px"] == {"w0": NODE, "far": "px"}
    view = await joining.cluster.node.ref(f"head/{PREDICTOR_ADMISSION}").view(returns=list[dict[str, Any]])
    assert [(one["id"], one["joined"], one["predicts"]) for one in view] == [(NODE, False, ["w0"]), ("px", True, ["far"])]
    assert (view[0]["state"], view[1]["state"], view[1]["labels"]) == ("silent", "ready", {"rack": "b"})
    await until(lambda: joining.told.last == ["px/dispatcher-0", "px/dispatcher-1"], "gateways may ask its dispatchers")
    py = await joining.predictors("py")
    await until(lambda: joining.places["py"] == {"w0": NODE, "far": "px"}, "the next one knows where it is")
    await until(lambda: len(joining.told.last) == 4, "and is asked, too")
    joining.launcher.network.cut(px.endpoint)
    await until(lambda: predicted(py) == {"predictor-far"}, "who is left predicts it")
    await until(lambda: joining.told.last == ["py/dispatcher-0", "py/dispatcher-1"], "and is asked alone")
    joining.launcher.network.cut(far.endpoint)
    await until(lambda: predicted(py) == set(), "a worker that is gone has no predictor")


async def test_a_predictor_that_ends_is_started_again(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.actors.predictor.coverage.AGAIN", 0.01)
    px = await joining.predictors("px")
    far = await joining.node("far", "worker")
    far.peering.announce_ready()
    await until(lambda: predicted(px) == {"predictor-far"}, "it predicts")
    first: Any = px.ref("px/predictor-far")
    life = px.actors.instances["predictor-far"]
    await px.kill_actor(first)
    await until(lambda: px.actors.instances.get("predictor-far") not in (None, life), "another one")


@claim("A process of predictors that may not join is refused with a sentence", of="prediction")
async def test_who_is_not_taken_in(joining: Joining) -> None:
    for name, role, said in (
        ("far", "worker", "node far has not joined as a predictor; make a join text with --role predictor"),
        ("g1", "predictor", "the name g1 is one that the head gives to its own processes; choose another --name"),
    ):
        with pytest.raises(JoinRefused, match=said):
            await enlist(await joining.node(name, role), {})
    await joining.cluster.node.despawn(PREDICTOR_ADMISSION)
    with pytest.raises(JoinRefused, match="no predictor is asked by the dispatch policy of this server; start it with"):
        await enlist(await joining.node("px", "predictor"), {})


@claim("The next head takes predictors that joined up again, with the workers that they predict", of="prediction")
async def test_the_next_head_takes_them_over_as_they_are(joining: Joining) -> None:
    px, py = await joining.predictors("px"), await joining.predictors("py")
    for name in ("far", "near", "wide"):
        (await joining.node(name, "worker")).peering.announce_ready()
    await until(lambda: len(predicted(px) | predicted(py)) == 3, "all are predicted")
    before = [dict(joining.places["px"]), {name: px.actors.instances.get(name) for name in predicted(px)}]
    admission = await joining.begin_anew()
    assert [one["id"] for one in await admission.view()] == [NODE]
    await take_over_predictors(joining.cluster, joining.settings, ["w0"])
    await until(lambda: len(joining.told.last) == 4, "gateways ask the dispatchers of both")
    view = {one["id"]: one for one in await admission.view()}
    assert [view[name]["labels"] for name in ("px", "py")] == [{"rack": "b"}] * 2
    assert {*view["px"]["predicts"], *view["py"]["predicts"]} == {"far", "near", "wide"}
    assert before == [joining.places["px"], {name: px.actors.instances.get(name) for name in predicted(px)}], "no new ones"


async def test_one_that_comes_later_to_the_next_head_is_taken_up_and_stood_for(joining: Joining) -> None:
    px = await joining.predictors("px")
    admission = await joining.begin_anew()
    await joining.cluster.node.despawn("px")
    tell_of_nodes(joining.cluster, joining.cluster.node.ref("head/controller"), Published(()), ["w0"], [])
    joining.cluster._callbacks.adopted(px.id)
    await until(lambda: joining.told.last == ["px/dispatcher-0", "px/dispatcher-1"], "gateways ask its dispatchers")
    assert [one["id"] for one in await admission.view()] == [NODE, "px"]
    await until(lambda: "px" in joining.cluster.node.actors.instances, "an actor stands for it, by which it can be ended")


async def test_a_head_whose_policy_asks_none_ends_them(joining: Joining) -> None:
    px = await joining.predictors("px")
    await joining.begin_anew()
    await take_over_predictors(joining.cluster, joining.settings.changed(dispatch="outstanding"), ["w0"])
    await until(px.closed.is_set, "it ends")
    assert UNASKED in joining.cluster.node.table.last_down["px"].cause

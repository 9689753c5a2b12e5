"""Requests of several gateway processes: a key finds its own in each of them, and an admin key finds all."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from blockwright.actors.gateway.peers import GatewayPeer
from blockwright.actors.gateway.port import RequestLine, RequestView
from blockwright.api.errors import ApiError
from blockwright.api.http.context import Front
from blockwright.api.http.idempotency import GivenAnswer, RunsOnce, owner_of
from blockwright.api.http.other_runs import OtherRuns
from blockwright.policies.requests.request_ownership import ChosenNames, Viewer
from blockwright.runtime import Node
from blockwright.runtime.testing import Simulation
from blockwright.tests.claims import claim

ROOT = Viewer("root", everything=True)
ANN, BOB = Viewer("ann"), Viewer("bob")


class Port:
    """A gateway with requests of two keys."""

    def __init__(self, lines: list[tuple[str, str, float, float | None]]) -> None:
        self.lines, self.ended = lines, list[str]()

    def describe(self, id: str) -> RequestView | None:
        key = next((key for name, key, *_ in self.lines if name == id), None)
        numbers = {"attempt": 1, "prompt_tokens": 1, "computed_tokens": 1, "emitted_tokens": 1}
        return key and RequestView(id=id, state="running", home="w0", route=[], events=[], key=key, **numbers)  # type: ignore[return-value]

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        return [
            RequestLine(id, "m", "running" if ended is None else "finished", 0, 1, 1, 1, "w0", 1, age, key, ended)
            for id, key, age, ended in self.lines
            if viewer.may_see(key)
        ][:limit]

    def cancel(self, id: str) -> bool:
        self.ended.append(id)
        return True


def front(port: Port, names: ChosenNames) -> Front:
    made = object.__new__(Front)
    object.__setattr__(made, "port", port)
    object.__setattr__(made, "names", names)
    object.__setattr__(made, "once", RunsOnce(30.0))
    return made


def test_all_processes_are_asked_and_the_latest_come_first() -> None:
    ports = {
        "g0": Port([("c-g0-2", "ann", 3.0, None), ("c-g0-1", "bob", 2.0, 9.0)]),
        "g1": Port([("c-g1-2", "bob", 1.0, None), ("c-g1-1", "ann", 5.0, 4.0)]),
    }
    names = {name: ChosenNames() for name in ports}
    names["g0"].record("bob", "c-g1-1", "c-g0-1")  # bob chose the id of ann's request at another gateway
    names["g1"].record("ann", "job", "c-g1-1")
    seen: dict[str, Any] = {}

    async def setup(node: Node) -> None:
        others = [name for name in ports if name != node.name]
        await node.spawn(GatewayPeer(front(ports[node.name], names[node.name]), others), name="peer")

    async def ask(sim: Any) -> None:
        peer = sim.head.ref("g0/peer", GatewayPeer)
        for who, viewer in (("root", ROOT), ("ann", ANN), ("bob", BOB)):
            lines = await peer.requests_anywhere(viewer, 9, returns=list[RequestLine])
            seen[who] = [line.id for line in lines]
        seen["last"] = [line.id for line in await peer.requests_anywhere(ROOT, 1, returns=list[RequestLine])]
        for name in ("c-g1-1", "job"):
            found = await peer.describe_anywhere(name, ROOT, returns=RequestView | None)
            seen[name] = (found.id, found.key)
        seen["hidden"] = await peer.describe_anywhere("c-g1-2", ANN, returns=RequestView | None)
        seen["kept"] = await peer.cancel_anywhere("c-g1-2", ANN, returns=bool)
        seen["cancelled"] = await peer.cancel_anywhere("job", ROOT, returns=bool)
        seen["misled"] = await peer.cancel_anywhere("c-g1-1", ROOT, returns=bool)

    Simulation(seed=1, nodes=tuple(ports), setup=setup).run(ask)
    assert seen["root"] == ["c-g1-2", "c-g0-2", "c-g1-1", "c-g0-1"]
    assert seen["ann"] == ["c-g0-2", "c-g1-1"]
    assert seen["bob"] == ["c-g1-2", "c-g0-1"]
    assert seen["last"] == ["c-g1-2"]
    assert seen["c-g1-1"] == seen["job"] == ("c-g1-1", "ann")
    assert (seen["hidden"], seen["kept"], seen["cancelled"], seen["misled"]) == (None, False, True, True)
    assert (ports["g0"].ended, ports["g1"].ended) == ([], ["c-g1-1", "c-g1-1"])


async def given(text: str) -> GivenAnswer:
    return GivenAnswer(text.encode(), {"x": text})


@claim("A retry with the same Idempotency-Key runs once, at whichever gateway it comes", of="http-api")
def test_a_retry_elsewhere_gets_what_runs_or_was_answered() -> None:
    fronts = {name: front(Port([]), ChosenNames()) for name in ("g0", "g1", "g2")}
    seen: dict[str, Any] = {}
    go_on = asyncio.Event()

    async def setup(node: Node) -> None:
        others = [name for name in fronts if name != node.name]
        await node.spawn(GatewayPeer(fronts[node.name], ["head", *others]), name="peer")

    async def slowly() -> GivenAnswer:
        await go_on.wait()
        return await given("slowly")

    async def failing() -> GivenAnswer:
        raise ApiError(409, "no", param="p", code="changed")

    async def ask(sim: Any) -> None:
        async def post(at: str, key: str, make: Any, sent: bytes = b"1") -> Any:
            runs = OtherRuns(sim.cluster.node.ref(f"{at}/peer"))
            return await fronts[at].once.answer(owner_of("ann", key), sent, make, runs)

        for number in range(6):  # whichever gateway keeps the key
            key = str(number)
            first = await post("g0", key, partial(given, "first"))
            assert (await post("g1", key, partial(given, "second"))) == first
            assert (await post("g2", key, partial(given, "third"))) == first
        running = asyncio.ensure_future(post("g1", "slow", slowly))
        await asyncio.sleep(0.1)
        retry = asyncio.ensure_future(post("g2", "slow", partial(given, "again")))
        await asyncio.sleep(0.1)
        go_on.set()
        seen["slow"] = [(await running).body, (await retry).body]
        for at in ("g0", "g1"):
            try:
                await post(at, "failing", failing if at == "g0" else partial(given, "better"))
            except ApiError as error:
                seen[at] = error.code
        seen["better"] = (await post("g2", "failing", partial(given, "no"))).body
        try:
            await post("g2", "0", partial(given, "other"), b"2")
        except ApiError as error:
            seen["body"] = (error.status, error.code)

    Simulation(seed=1, nodes=tuple(fronts), setup=setup).run(ask)
    assert seen["slow"] == [b"slowly", b"slowly"]
    assert (seen["g0"], seen.get("g1"), seen["better"]) == ("changed", None, b"better"), "a failure is not kept"
    assert seen["body"] == (409, "changed")

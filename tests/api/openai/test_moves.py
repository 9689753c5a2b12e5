"""``POST /admin/requests/{id}/move`` and ``/admin/workers/{id}/drain``: what they answer, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.gateway.peers import GatewayPeer
from blockwright.actors.gateway.port import MoveBegun, MovesBegun, RefusedChange, RequestView
from blockwright.api.app.openapi import document
from blockwright.api.app.routes import ENDPOINTS
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.requests.request_ownership import Viewer
from blockwright.runtime import Node
from blockwright.runtime.testing import Simulation

CONFLICT = RequestRefused(Refusal.CONFLICT, "it is on worker w0 already", param="worker")


def view(id: str) -> RequestView:
    return RequestView(
        id=id, state="running", attempt=1, home="w0", route=[], prompt_tokens=1, computed_tokens=0, emitted_tokens=0,
        events=[], key="another",
    )  # fmt: skip


@pytest.mark.parametrize("to", [None, {}, {"worker": "w2"}, {"route": "m@w2"}])
async def test_the_target_of_a_move_is_reported(serve: Any, to: dict[str, str] | None) -> None:
    """Whoever may use /admin moves any request."""
    client, port = await serve()
    port.views["r"] = view("r")
    answer = await client.post("/admin/requests/r/move", **({} if to is None else {"json": to}))
    there = {"worker": "w1", "route": "m@w1", **(to or {})}
    move = {"request": "r", "from": "w0", "to": there["worker"], "route": there["route"], "pages": 3, "bytes": 3072}
    assert (answer.status, await answer.json()) == (202, {"id": "r", "moves": [move]})


def test_a_move_is_described_as_it_is_answered() -> None:
    responses = document(ENDPOINTS, "")["paths"]["/admin/requests/{id}/move"]["post"]["responses"]
    assert [status for status in responses if status < "300"] == ["202"]


async def test_what_cannot_move(serve: Any) -> None:
    client, port = await serve()
    port.views["r"] = view("r")
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        ("nobody", {}, 404, "id"),
        ("r", {"worker": "w1", "route": "m@w1"}, 400, "route"),
        ("r", {"worker": 3}, 400, "worker"),
        ("r", {"wroker": "w1"}, 400, "wroker"),
    ]
    for id, to, status, param in cases:
        answer = await client.post(f"/admin/requests/{id}/move", json=to)
        assert (answer.status, (await answer.json())["error"]["param"]) == (status, param)
    port.refuse = CONFLICT
    answer = await client.post("/admin/requests/r/move", json={})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["message"]) == (409, "worker", "it is on worker w0 already")


async def test_a_worker_is_drained_and_used_again(serve: Any) -> None:
    client, port = await serve()
    queue = {"running": 3, "waiting": 2}
    for ask in (client.post("/admin/workers/w0/drain"), client.post("/admin/workers/w0/drain", json={"drain": True})):
        answer = await ask
        assert (answer.status, await answer.json()) == (202, {"worker": "w0", "draining": True, "queue": queue})
    for ask in (client.delete("/admin/workers/w0/drain"), client.post("/admin/workers/w0/drain", json={"drain": False})):
        answer = await ask
        assert (answer.status, (await answer.json())["draining"]) == (200, False)
    for wrong in ({"drain": "yes"}, {"drian": False}):
        answer = await client.post("/admin/workers/w0/drain", json=wrong)
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, *wrong)
    port.refuse = RequestRefused(Refusal.UNKNOWN_WORKER, "worker 'w0' does not exist", param="id")
    assert (await client.post("/admin/workers/w0/drain")).status == 404


class Front:
    """Of a process that has one request, or none."""

    retry_window = 0.0

    def owners(self) -> list[str]:
        return []

    def __init__(self, answer: MovesBegun) -> None:
        self.answer = answer

    def move(self, name: str, viewer: Viewer, worker: str, route: str) -> MovesBegun:
        return self.answer


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("found", [MovesBegun([MoveBegun("r", "w0", "w1", "m@w1", 1, 2)]),
                                   MovesBegun([], RefusedChange(Refusal.CONFLICT, "no", "id"))])  # fmt: skip
def test_it_is_looked_for_in_every_process(found: MovesBegun, here: bool) -> None:
    fronts = {"g0": Front(found if here else MovesBegun([])), "g1": Front(MovesBegun([]) if here else found)}
    answers: list[MovesBegun] = []

    async def setup(node: Node) -> None:
        front: Any = fronts[node.name]
        await node.spawn(GatewayPeer(front, [name for name in fronts if name != node.name]), name="peer")

    async def ask(sim: Any) -> None:
        answers.append(await sim.head.ref("g0/peer", GatewayPeer).move_anywhere("r", Viewer(), "w1", "", returns=MovesBegun))

    Simulation(seed=1, nodes=tuple(fronts), setup=setup).run(ask)
    assert answers == [found]

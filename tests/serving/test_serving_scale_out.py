"""Blocks that are deployed for a burst and go again, over seeds of kills, drops, delays and duplicates.

The word that a block is pressed comes from the test: in virtual time a burst is over between two heartbeats.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.gateway.actor import Gateway
from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.tests.parts import spans
from blockwright.tests.serving.device import CHUNK
from blockwright.tests.serving.game import REQUESTS, Game, Request
from blockwright.tests.serving.house import HEAD, Plan

PAGE_BYTES = 256 * 2  # of both layers, as stored
WAVES = (0.0, 0.6, 0.6, 0.6)  # seconds when requests come


class Burst(Game):
    """Both applications fit on the first worker alone; each other one has room for the upper part of one."""

    def _plan(self) -> Plan:
        plan = super()._plan()
        first, *others = plan.workers
        rooms = {first: 1 << 30} | dict.fromkeys(others, 3000 + PAGE_BYTES)
        return replace(plan, applications=plan.applications[:2], memory=20 * CHUNK, max_rows=6, rooms=rooms)

    def _request(self, number: int, gateway: str = "", application: str = "") -> Request:
        request = super()._request(number, gateway, application or self.random.choice("abb"))
        request.at = self.random.choice(WAVES) + self.random.uniform(0.0, 0.01)
        return request

    def _clients(self, gateway: Gateway) -> list[Coroutine[Any, Any, None]]:
        found = super()._clients(gateway)
        if gateway.node.name == HEAD:
            found.append(self._press(gateway))
        return found

    async def _press(self, gateway: Gateway) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        for _ in range(8):
            worker = self.house.state.workers["w0"]
            blocks = [PressedBlock(0.9, {"b": (3, 6)})]
            gateway.node.ref(f"{HEAD}/controller").pressed.cast("w0", worker.incarnation, blocks)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("span", spans(1, 30, 15), ids=str)
def test_blocks_come_and_go_and_every_request_ends_with_the_right_tokens(span: range) -> None:
    ways: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    for seed in span:
        game = Burst(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        outcomes += game.outcomes
        for gateway in game.house.gateways.values():
            views = [view for request in game.requests if (view := gateway.describe(request.id)) is not None]
            ways.update(len(view.route) for view in views)
    assert ways[2] >= len(span) // 3, ways
    assert outcomes["done"] + outcomes["cancelled"] >= 0.8 * sum(outcomes.values()), outcomes

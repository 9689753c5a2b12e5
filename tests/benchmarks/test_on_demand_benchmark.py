"""The comparison of adapters on demand: what it waits for, and the memory that so many adapters fit."""

from __future__ import annotations

from typing import Any, cast

import on_demand
import pytest
from server import Served


class Loading:
    """A server whose adapter is loaded after it was asked so many times."""

    def __init__(self, asks: int) -> None:
        self.left = asks

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/admin/cluster"
        self.left -= 1
        states = {"base": "ready", "a0": "loading" if self.left >= 0 else "ready", "a1": "on demand"}
        return {"applications": {name: {"state": state} for name, state in states.items()}}


async def at_once(seconds: float) -> None:
    assert seconds > 0


@pytest.mark.parametrize("asks", [0, 1, 5])
async def test_nothing_is_counted_while_an_adapter_is_loading(asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand.asyncio, "sleep", at_once)
    server = Loading(asks)
    assert await on_demand.resident(cast(Served, server)) == 1  # a0: the base is not counted, a1 is not there
    assert server.left == -1


@pytest.mark.parametrize("adapter", [550_000, 5_510_400])
def test_what_others_leave_to_kv_is_what_the_benchmark_asks_for(adapter: int) -> None:
    words = dict(word.split("=") for word in on_demand.limits(107_742_720, adapter) if "=" in word)
    left = (on_demand.FIT - 0.5) * adapter + on_demand.KV
    assert float(words["kv_reserve"]) * left == pytest.approx(on_demand.KV, rel=1e-5)
    assert int(words["memory"]) % on_demand.CHUNK == 0
    assert 0 <= int(words["memory"]) - 107_742_720 - adapter - left < on_demand.CHUNK

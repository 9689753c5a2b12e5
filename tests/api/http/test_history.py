"""``/metrics/history``: what the page's charts show."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.gateway.port import Census
from blockwright.actors.load_history import Memory
from blockwright.api.http import history
from blockwright.api.http.context import FRONT


async def test_the_past_is_reported_with_the_present(serve: Any, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL", 3600.0)  # the looks are this test's
    client, port = await serve(say("abcd"))
    front = client.app[FRONT]
    port.sequences = {"tiny": Census(3, {"capacity": 2})}
    front.history._first = None  # the server's own look was now
    began = 1_700_000_000
    monkeypatch.setattr(history, "wall_clock", lambda: began + 20.0)
    history.look(front, began)
    await (await client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 4})).read()
    history.look(front, began + 1)
    memory = {"parameters": 7, "kv": 1, "cached": 2, "free": 3}
    port.body = {"workers": [{"memory": memory, "kv_by_tenant": {"": 3}}]}
    assert (await client.get("/admin/cluster")).status == 200
    history.look(front, began + 2)
    answer = await (await client.get("/metrics/history?seconds=60")).json()
    assert answer["step"] == 1
    first, second = answer["rows"]
    assert (first["at"], first["running"], first["waiting"], first["tokens_per_second"]) == (began + 1, 3, 2, 4.0)
    assert 0 < first["p50"] <= first["p95"]
    assert second["p50"] == first["p50"], "over ten seconds"
    assert second["tokens_per_second"] == 0
    assert second["memory"] == {**memory, "tenants": {"": 3}}
    later = await (await client.get(f"/metrics/history?seconds=60&after={began + 2}")).json()
    assert later["rows"] == [second], "the window reaches back further than the report"
    hour = await (await client.get("/metrics/history?seconds=3600")).json()
    assert (hour["step"], sum(row["running"] > 0 for row in hour["rows"]) >= 1) == (10, True)


@pytest.mark.parametrize("asked", ["seconds=0", "seconds=1.5", "seconds=90000", "after=-1", "after=x"])
async def test_a_wrong_span_is_refused_by_name(serve: Any, asked: str) -> None:
    client, _ = await serve()
    answer = await client.get(f"/metrics/history?{asked}")
    error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, asked.partition("=")[0])
    assert error["message"].startswith(f"{asked.partition('=')[0]} is ")


async def test_a_cluster_that_cannot_be_asked_leaves_a_gap(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL", 3600.0)
    client, port = await serve()
    front = client.app[FRONT]
    port.body = {"workers": [{"memory": {"parameters": 7}}]}
    await history._ask(front)
    assert front.history.memory == Memory(parameters=7)

    async def away() -> dict[str, Any]:
        raise RuntimeError("away")

    monkeypatch.setattr(port, "cluster", away)
    await history._ask(front)
    assert front.history.memory is None

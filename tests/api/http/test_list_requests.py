"""GET /v1/requests: the latest requests of a key."""

from __future__ import annotations

import dataclasses
from typing import Any

from blockwright.tests.api.app.test_application import ANN, BOB, KEYS, VIEW
from blockwright.tests.claims import claim


@claim("`/v1/requests` lists requests with their place, prefill and worker", of="http-api")
async def test_a_key_sees_its_own(serve: Any) -> None:
    client, port = await serve(settings=KEYS)
    port.views = {str(n): dataclasses.replace(VIEW, id=f"cmpl-gw0-{n}", model="tiny") for n in range(3)}
    body = await (await client.get("/v1/requests", headers=ANN)).json()
    assert body["object"] == "list"
    assert [one["id"] for one in body["data"]] == ["cmpl-gw0-0", "cmpl-gw0-1", "cmpl-gw0-2"]
    assert body["data"][0]["model"] == "tiny"
    assert len((await (await client.get("/v1/requests?limit=2", headers=ANN)).json())["data"]) == 2
    assert (await (await client.get("/v1/requests", headers=BOB)).json())["data"] == []


async def test_a_limit_that_cannot_be(serve: Any) -> None:
    client, _ = await serve()
    for limit in ("0", "x", "1001", "-1"):
        answer = await client.get("/v1/requests", params={"limit": limit})
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "limit")

"""``POST /v1/requests/{id}/cancel``: ends a request of one's own, by its id or the name its client gave it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blockwright.actors.gateway.port import RequestView
from blockwright.api.http.auth import Keys

KEYS = {"api_keys": {"alpha-key": "ann", "beta-key": "ann"}}
ANN, OTHER = {"Authorization": "Bearer alpha-key"}, {"Authorization": "Bearer beta-key"}


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_running_request_is_ended_by_its_key_alone(serve: Any, by_name: bool) -> None:
    held = asyncio.Event()
    client, port = await serve(lambda generation: [held], settings=KEYS)
    headers = {**ANN, "x-request-id": "mine"}
    asked = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a"}, headers=headers))
    stream = await port.waiting.get()
    caller = Keys(KEYS["api_keys"]).caller(ANN["Authorization"])
    assert caller is not None
    port.views[stream.generation.id] = RequestView(
        id=stream.generation.id,
        state="running",
        attempt=1,
        home="w0",
        route=[],
        prompt_tokens=1,
        computed_tokens=0,
        emitted_tokens=0,
        events=[],
        key=caller.key,
    )
    path = f"/v1/requests/{'mine' if by_name else stream.generation.id}/cancel"
    assert (await client.post(path, headers=OTHER)).status == 404
    assert not stream.cancelled.is_set()
    answer = await client.post(path, headers=ANN)
    assert (answer.status, (await answer.json())["cancelled"]) == (200, True)
    assert stream.cancelled.is_set()
    assert (await client.post(path, headers=ANN)).status == 404
    asked.cancel()

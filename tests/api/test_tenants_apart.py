"""What one key may learn of another's requests: nothing, whichever door it tries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from blockwright.actors.gateway.port import RequestView
from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.claims import claim

KEYS = {"api_keys": {"of-ann": "team-a", "of-amy": "team-a", "of-bob": "team-b", "of-nobody": ""}}
URL = "/v1/completions"


def key(name: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}", **more}


async def salt(client: Any, port: Any, caller: str | None, **fields: Any) -> bytes:
    answer = await client.post(URL, json={"prompt": "a", **fields}, headers=key(caller) if caller else {})
    assert answer.status == 200
    found: bytes = port.streams[-1].generation.salt
    return found


@claim("Tenants share no cached prefix and learn nothing of each other's prompts", of="security")
async def test_tenants_share_no_cached_prefixes(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    ann, amy, bob = [await salt(client, port, caller) for caller in ("of-ann", "of-amy", "of-bob")]
    assert (ann == amy, ann == bob) == (True, False), "keys of one tenant share"
    salted = await salt(client, port, "of-ann", cache_salt="s")
    assert salted == await salt(client, port, "of-amy", cache_salt="s")
    assert len({ann, bob, salted, await salt(client, port, "of-bob", cache_salt="s")}) == 4


async def test_no_salt_leads_into_another_tenants_cache(serve: Any, say: Any) -> None:
    """A client may choose its salt, and a tenant may have no name."""
    client, port = await serve(say("x"), settings=KEYS)
    theirs = {await salt(client, port, "of-ann"), await salt(client, port, "of-ann", cache_salt="s")}
    for wished in (*(one.decode() for one in theirs), "team-a", "6 team-a ", "\0team-a", " 6 team-a s", "s"):
        for caller in ("of-bob", "of-nobody"):
            assert await salt(client, port, caller, cache_salt=wished) not in theirs


async def test_they_share_where_that_is_set_or_there_are_no_keys(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings={**KEYS, "shared_cache": True})
    assert await salt(client, port, "of-ann") == await salt(client, port, "of-bob") == b""
    assert await salt(client, port, "of-ann", cache_salt="s") == await salt(client, port, "of-bob", cache_salt="s") == b"s"
    client, port = await serve(say("x"))
    assert [await salt(client, port, None), await salt(client, port, None, cache_salt="s")] == [b"", b"s"]


@claim("A request exists only for the key that sent it and for admin keys", of="security")
async def test_a_request_does_not_exist_for_other_keys(serve: Any) -> None:
    gate = asyncio.Event()
    client, port = await serve(lambda generation: [gate, *one_by_one([70])], settings=KEYS)
    asking = asyncio.create_task(
        client.post(URL, json={"prompt": "secret", "n": 2}, headers=key("of-ann", **{"x-request-id": "mine"}))
    )
    id = (await port.waiting.get()).generation.id.partition("/")[0]
    numbers = {"attempt": 1, "prompt_tokens": 6, "computed_tokens": 6, "emitted_tokens": 0}
    for name in (id, f"{id}/1"):
        port.views[name] = RequestView(
            id=name, state="running", home="w0", route=[], events=[], key=port.streams[0].generation.key, **numbers
        )
    names = (id, f"{id}/1", "mine", id.upper(), f"{id}%00", f"../requests/{id}", "%2e%2e/mine")
    unknown = await client.get("/v1/requests/unheard-of", headers=key("of-bob"))
    for caller in ("of-bob", "of-amy", "of-nobody"):
        for name in names:
            looked = await client.get(f"/v1/requests/{name}", headers=key(caller))
            assert looked.status == unknown.status == 404
            assert "secret" not in await looked.text()
            assert (await client.post(f"/v1/requests/{name}/cancel", headers=key(caller))).status == 404
    assert (await client.get("/v1/requests/mine", headers=key("of-ann"))).status == 200
    assert not any(stream.cancelled.is_set() for stream in port.streams)
    assert (await client.post("/v1/requests/mine/cancel", headers=key("of-ann"))).status == 200
    gate.set()
    await (await asking).read()


ADMIN = {**KEYS, "admin_keys": {"of-root": "operators"}}


async def test_an_admin_key_lists_explains_and_cancels_the_requests_of_all(serve: Any) -> None:
    gate = asyncio.Event()
    client, port = await serve(lambda generation: [gate, *one_by_one([70])], settings=ADMIN)
    asking, ids = [], {}
    for caller in ("of-ann", "of-bob", "of-root"):
        headers = key(caller, **{"x-request-id": f"by-{caller}"})
        asking.append(asyncio.create_task(client.post(URL, json={"prompt": "secret"}, headers=headers)))
        made = (await port.waiting.get()).generation
        ids[caller] = made.id
        port.views[made.id] = RequestView(
            id=made.id, state="running", attempt=1, home="w0", route=[], prompt_tokens=1, computed_tokens=1,
            emitted_tokens=0, events=[], key=made.key, tenant=made.tenant,
        )  # fmt: skip
    listed = await (await client.get("/v1/requests", headers=key("of-root"))).text()
    assert [one["tenant"] for one in json.loads(listed)["data"]] == ["team-a", "team-b", "operators"]
    assert not any(word in listed for word in ("secret", *(made.generation.key for made in port.streams), "of-ann"))
    own = await (await client.get("/v1/requests", headers=key("of-bob"))).json()
    assert [one["id"] for one in own["data"]] == [ids["of-bob"]], "another key sees its own alone"
    for name in (ids["of-ann"], "by-of-ann"):
        looked = await (await client.get(f"/v1/requests/{name}", headers=key("of-root"))).json()
        assert (looked["id"], looked["tenant"]) == (ids["of-ann"], "team-a")
        assert not {"key", "arrival"} & looked.keys()
    hidden = await client.get(f"/v1/requests/{ids['of-ann']}", headers=key("of-bob"))
    assert "only the key that sent it may see it, or an admin key" in (await hidden.json())["error"]["message"]
    cancelled = await client.post("/v1/requests/by-of-ann/cancel", headers=key("of-root"))
    assert cancelled.status == 200
    assert [stream.cancelled.is_set() for stream in port.streams] == [True, False, False]
    gate.set()
    for one in asking:
        await (await one).read()


async def test_a_client_that_chooses_the_id_of_another_request_misleads_no_admin(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=ADMIN)
    await client.post(URL, json={"prompt": "a"}, headers=key("of-ann"))
    victim = port.streams[-1].generation
    await client.post(URL, json={"prompt": "a"}, headers=key("of-bob", **{"x-request-id": victim.id}))
    for made in (victim, port.streams[-1].generation):
        port.views[made.id] = RequestView(
            id=made.id, state="finished", attempt=1, home=None, route=[], prompt_tokens=1, computed_tokens=1,
            emitted_tokens=1, events=[], key=made.key, tenant=made.tenant,
        )  # fmt: skip
    assert (await (await client.get(f"/v1/requests/{victim.id}", headers=key("of-root"))).json())["tenant"] == "team-a"


async def test_where_no_key_is_an_admin_key_none_sees_the_requests_of_another(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    await client.post(URL, json={"prompt": "a"}, headers=key("of-ann"))
    made = port.streams[-1].generation
    port.views[made.id] = RequestView(
        id=made.id, state="finished", attempt=1, home=None, route=[], prompt_tokens=1, computed_tokens=1,
        emitted_tokens=1, events=[], key=made.key,
    )  # fmt: skip
    assert (await client.get("/admin/cluster", headers=key("of-bob"))).status == 200
    assert (await (await client.get("/v1/requests", headers=key("of-bob"))).json())["data"] == []


async def test_a_name_that_another_key_chose_too_leads_to_the_own_request(serve: Any, say: Any) -> None:
    """Replayed ids: the newest of a key counts for that key, and for no other."""
    client, port = await serve(say("x"), settings=KEYS)
    ids = {}
    for caller in ("of-ann", "of-bob", "of-ann"):
        await client.post(URL, json={"prompt": "a"}, headers=key(caller, **{"x-request-id": "same"}))
        made = port.streams[-1].generation
        ids[caller] = made.id
        port.views[made.id] = RequestView(
            id=made.id, state="finished", attempt=1, home=None, route=[], prompt_tokens=1, computed_tokens=1,
            emitted_tokens=1, events=[], key=made.key,
        )  # fmt: skip
    for caller, id in ids.items():
        assert (await (await client.get("/v1/requests/same", headers=key(caller))).json())["id"] == id

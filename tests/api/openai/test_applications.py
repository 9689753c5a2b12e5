"""``/admin/apps`` and vLLM's adapter endpoints: what they take, what they answer, who may use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import NewApplication
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.claims import claim


@pytest.fixture
def roots(folder: Path) -> dict[str, str]:
    return {"app_roots": str(folder.parent)}


@pytest.fixture
def adapter(folder: Path) -> Path:
    made = folder.parent / "adapter"
    made.mkdir(exist_ok=True)
    (made / "adapter_config.json").write_text("{}")
    return made


async def test_an_application_is_added_replaced_and_removed(serve: Any, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    answer = await client.post("/admin/apps", json={"name": "tuned", "path": str(folder)})
    assert (answer.status, await answer.json()) == (
        200,
        {
            "name": "tuned",
            "path": str(folder),
            "state": "ready",
            "base": None,
            "max_model_len": 64,
            "bytes": {"own": 21_000_000, "shared": 679_000_000},
            "summary": "shares 97% of its blocks, +20.0 MiB",
        },
    )
    slow = await client.post("/admin/apps/org/tuned", json={"path": str(folder), "base": "tiny", "wait": 0})
    assert (slow.status, (await slow.json())["state"]) == (202, "loading")
    assert port.added == [
        NewApplication("tuned", str(folder)),
        NewApplication("org/tuned", str(folder), "tiny", replace=True, wait=0.0),
    ]
    gone = await client.delete("/admin/apps/org/tuned")
    assert (gone.status, await gone.json()) == (
        200,
        {
            "name": "org/tuned",
            "state": "removed",
            "freed": 3 << 20,
            "adapters": 0,
            "default": "tiny",
            "summary": "3.0 MiB freed; requests without a model go to tiny",
        },
    )
    slow = await client.delete("/admin/apps/slow")
    answer = await slow.json()
    assert (slow.status, answer["state"], answer["summary"][:18]) == (202, "ending", "3.0 MiB to be free")
    assert port.removed == [("org/tuned", 30.0), ("slow", 30.0)]


async def test_the_answer_to_a_removal_says_whose_drafts_end(serve: Any, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    port.undrafted = ("drafts.big names small, which is not served",)
    answer = await (await client.delete("/admin/apps/small")).json()
    assert answer["summary"].endswith("; drafts.big names small, which is not served")


async def test_what_follows_for_requests_without_a_model(serve: Any, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    assert [one["default"] for one in (await (await client.get("/v1/models")).json())["data"]] == [True, False]
    answer = await (await client.delete("/admin/apps/tiny")).json()
    assert answer["default"] is None
    assert answer["summary"] == (
        "19 adapters keep its blocks, 0 B freed; it was the default: requests without a model are refused until tiny is "
        "added again"
    )
    port.infos = port.infos[1:]
    refused = await client.post("/tokenize", json={"prompt": "a"})
    error = (await refused.json())["error"]
    assert (refused.status, error["param"], error["code"]) == (400, "model", "no_default_model")
    assert "the default, 'tiny', is not served; name one of org/other, add 'tiny' again" in error["message"]
    assert (await client.get("/v1/models")).status == 200
    answer = await (await client.delete("/admin/apps/gone?default=org/other")).json()
    assert (answer["default"], port.default) == ("org/other", "org/other")
    answer = await client.post("/tokenize", json={"prompt": "a"})
    assert (answer.status, (await answer.json())["max_model_len"]) == (200, 16)


async def test_nothing_is_said_of_what_is_not_known_yet(serve: Any, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    port.sizes = (0, 0)
    answer = await client.post("/admin/apps", json={"name": "a", "path": str(folder), "wait": 0})
    assert (await answer.json())["summary"] == "what it shares is known when it has been read"
    port.sizes = (384, 3_506_688)
    answer = await client.post("/admin/apps", json={"name": "a", "path": str(folder)})
    assert (await answer.json())["summary"] == "shares 99.99% of its blocks, +384 B"


@claim("The vLLM endpoints for adapters load and unload them", of="fine-tunes")
async def test_vllms_endpoints_do_the_same(serve: Any, adapter: Path, roots: dict[str, str]) -> None:
    folder = adapter
    client, port = await serve(settings=roots)
    answer = await client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(folder)})
    assert (answer.status, await answer.text()) == (200, "Success: LoRA adapter 'a' added successfully.")
    answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
    assert (answer.status, await answer.text()) == (200, "Success: LoRA adapter 'a' removed successfully.")
    assert (port.added, port.removed) == ([NewApplication("a", str(folder))], [("a", 30.0)])
    port.refuse = RequestRefused(Refusal.CONFLICT, "model 'a' is served already", param="name")
    answer = await client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(folder)})
    assert (answer.status, (await answer.json())["error"]["param"]) == (409, "lora_name")


@pytest.mark.parametrize("whole", [True, False])
async def test_vllms_endpoint_takes_adapters_alone(serve: Any, folder: Path, roots: dict[str, str], whole: bool) -> None:
    client, port = await serve(settings=roots)
    path = folder if whole else folder.parent
    answer = await client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(path)})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "lora_path")
    assert "has no adapter_config.json; add a whole model with POST /admin/apps" in error["message"]
    assert port.added == []


async def test_load_inplace_replaces_what_is_there(serve: Any, adapter: Path, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    body = {"lora_name": "a", "lora_path": str(adapter), "load_inplace": True}
    assert (await client.post("/v1/load_lora_adapter", json=body)).status == 200
    assert port.added == [NewApplication("a", str(adapter), replace=True)]
    absent = RequestRefused(Refusal.UNKNOWN_MODEL, "no model 'a' is served", param="name")
    adds, port.added = port.add_application, []

    async def add(new: NewApplication) -> Any:
        if new.replace:
            raise absent
        return await adds(new)

    port.add_application = add
    assert (await client.post("/v1/load_lora_adapter", json=body)).status == 200
    assert port.added == [NewApplication("a", str(adapter))]
    answer = await client.post("/admin/apps/a", json={"path": str(folder)})
    assert answer.status == 404


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"path": "/x"}, 400, "name", "name is missing"),
        ({"name": "a"}, 400, "path", "path is missing"),
        ({"name": 7, "path": "/x"}, 400, "name", "name is 7; give a string"),
        ({"name": "a", "path": "/x", "wait": -1}, 400, "wait", "from 0 to 600"),
        ({"name": "a", "path": "/etc"}, 400, "path", "not below a root of app_roots"),
        ({"name": "a", "path": "{root}"}, 400, "path", "config.json"),
        ({"name": "a", "path": "{root}/missing"}, 400, "path", "there is no folder"),
    ],
)
async def test_bad_bodies(
    serve: Any, folder: Path, roots: dict[str, str], body: dict[str, Any], status: int, param: str, says: str
) -> None:
    client, port = await serve(settings=roots)
    if "{root}" in str(body.get("path")):
        body = {**body, "path": body["path"].format(root=folder.parent)}
    answer = await client.post("/admin/apps", json=body)
    error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (status, param), error
    assert says in error["message"]
    assert port.added == []


async def test_without_roots_the_remedy_is_said(serve: Any, folder: Path) -> None:
    client, port = await serve()
    answer = await client.post("/admin/apps", json={"name": "a", "path": str(folder)})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (403, "permission_denied", "path")
    assert "restart it with --set app_roots=FOLDER" in error["message"]
    assert port.added == []


@claim("Only admin keys change models where admin keys exist", of="security")
async def test_only_keys_that_are_marked_admin_may_change_anything(
    serve: Any, folder: Path, adapter: Path, roots: dict[str, str]
) -> None:
    keys = {"api_keys": {"plain": "ann"}, "admin_keys": {"root": "ops"}}
    client, port = await serve(settings={**roots, **keys})
    asked = [
        ("POST", "/admin/apps", {"name": "a", "path": str(folder)}),
        ("POST", "/admin/apps/a", {"path": str(folder)}),
        ("DELETE", "/admin/apps/a", None),
        ("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(adapter)}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": "a"}),
    ]
    for method, path, body in asked:
        for key, status in (("plain", 403), ("wrong", 401), ("root", 200)):
            answer = await client.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status == status, (method, path, key)
    assert (len(port.added), len(port.removed)) == (3, 2)


async def test_what_is_refused_behind_the_port_is_reported(serve: Any, folder: Path, roots: dict[str, str]) -> None:
    client, port = await serve(settings=roots)
    for why, status, param in (
        (Refusal.CONFLICT, 409, "name"),
        (Refusal.INVALID, 400, "path"),
        (Refusal.UNKNOWN_MODEL, 404, "name"),
    ):
        port.refuse = RequestRefused(why, "a sentence", param=param)
        answer = await client.post("/admin/apps", json={"name": "a", "path": str(folder)})
        assert (answer.status, (await answer.json())["error"]["param"]) == (status, param)


async def test_an_adapter_of_the_folder_is_looked_for_when_it_is_asked_for(serve: Any) -> None:
    client, port = await serve(
        settings={"adapters": "/ada", "tenant_models": {"ann": "tiny"}, "api_keys": {"k": "ann", "o": "bob"}}
    )
    bob, ann = ({"Authorization": f"Bearer {key}"} for key in ("o", "k"))
    body = {"model": "found", "prompt": "a"}
    assert (await client.post("/tokenize", json=body, headers=ann)).status == 403
    assert port.sought == [], "a key that may not use it brings nothing about"
    assert (await client.post("/tokenize", json=body, headers=bob)).status == 200
    assert (await client.post("/tokenize", json=body, headers=bob)).status == 200
    assert port.sought == ["found"], "once"
    assert (await client.post("/tokenize", json={**body, "model": "nobody"}, headers=bob)).status == 404
    port.refuse = RequestRefused(Refusal.UNKNOWN_MODEL, "model 'bad' cannot be served: it lacks a tensor", param="model")
    answer = await client.post("/v1/completions", json={**body, "model": "bad"}, headers=bob)
    assert (answer.status, (await answer.json())["error"]["param"]) == (404, "model")


async def test_without_a_folder_nothing_is_looked_for(serve: Any) -> None:
    client, port = await serve()
    assert (await client.post("/tokenize", json={"model": "found", "prompt": "a"})).status == 404
    assert port.sought == []


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        ("/admin/apps", {"temprature": 0.2}, "temprature", "did you mean temperature"),
        ("/admin/apps", {"num_predict": 9}, "num_predict", "it is called max_tokens here"),
        ("/admin/apps", {"base_model": "tiny"}, "base_model", "it is called base here"),
        ("/admin/apps", {"wibble": 1}, "wibble", "unknown fields"),
        ("/admin/apps/tuned", {"system_prompt": "x"}, "system_prompt", "it is called system here"),
        ("/v1/load_lora_adapter", {"base": "tiny"}, "base", "it is called base_model_name here"),
        ("/v1/load_lora_adapter", {"base_model_nam": "tiny"}, "base_model_nam", "did you mean base_model_name"),
    ],
)
async def test_a_field_that_would_be_ignored_is_refused(
    serve: Any, folder: Path, roots: dict[str, str], path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    client, port = await serve(settings=roots)
    own = {"lora_name": "a", "lora_path": str(folder)} if "lora" in path else {"path": str(folder)}
    own |= {"name": "tuned"} if path == "/admin/apps" else {}
    answer = await client.post(path, json={**own, **fields})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], port.added) == (400, param, [])
    assert says in error["message"]

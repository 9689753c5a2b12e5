"""A base, a fine-tune of equal shape, and a folder of adapters on one server: what each is put on, what a request without a
model gets, and what is there after a restart."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.tests.adapters import greedy, make_adapter, peft_model
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import some
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.server import Server

pytestmark = pytest.mark.system
PROMPT = prompt_of(21, seed=3)


def nameless(adapter: Path) -> Path:
    """As local training often leaves it."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    return adapter


@pytest.fixture
def root(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base`` and ``full0``, whole; ``ada`` with an adapter of each; a nameless one and one for later beside them."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(model, root / "base")
    altered(model, root / "full0", ("layers.1.mlp", "layers.1.self_attn"))
    make_adapter(root / "base", root / "ada" / "ann", 1)
    make_adapter(root / "full0", root / "ada" / "fay", 2)
    make_adapter(root / "base", root / "later", 3)
    nameless(make_adapter(root / "base", root / "lora00", 4))
    for name, base in (("ada/ann", "base"), ("ada/fay", "acme/full0"), ("later", str(root / "base"))):
        config = json.loads((root / name / "adapter_config.json").read_text())
        (root / name / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))
    return root


def begin(root: Path) -> Server:
    settings = {"adapters": root / "ada", "app_roots": root, "applications.terse.path": root / "base"}
    more = {"applications.terse.max_tokens": 3, "applications.terse.temperature": 0}
    arguments = ["--app", f"full0={root / 'full0'}"]
    return Server(root / "base", workers=1, arguments=arguments, **settings, **more).whole()


async def asked(client: Client, name: str | None, new: int = 12) -> tuple[int, Any]:
    status, answer = await client.post({**body(0, new, PROMPT), "model": name})
    return status, answer["choices"][0]["token_ids"] if status == 200 else answer["error"]


async def bases(client: Client) -> dict[str, str | None]:
    return {name: one["base"] for name, one in (await client.get("/admin/apps"))[1]["applications"].items()}


Expected = dict[str, list[int]]


@pytest.fixture
def expected(root: Path) -> Expected:
    """What peft computes, by model."""
    found = {"ann": ("base", "ada/ann"), "fay": ("full0", "ada/fay"), "carl": ("base", "later"), "full": ("full0", "lora00")}
    return {name: greedy(peft_model(root / base, root / folder), PROMPT, 12) for name, (base, folder) in found.items()}


async def serves_the_folder(client: Client, root: Path, expected: Expected) -> None:
    """What lies in it at the start, and what comes later."""
    listed = {one["id"]: one for one in (await client.get("/v1/models"))[1]["data"]}
    assert [listed[name]["parent"] for name in ("ann", "fay")] == ["base", "full0"]
    assert [name for name, one in listed.items() if one["default"]] == ["base"]
    for name in ("ann", "fay"):
        assert await asked(client, name) == (200, expected[name])
    shutil.copytree(root / "later", root / "ada" / "carl")
    assert await asked(client, "carl") == (200, expected["carl"]), "found with its first request"
    assert (await asked(client, "../later"))[0] == (await asked(client, "nobody"))[0] == 404
    _, answer = await client.post({"model": "terse", "prompt": PROMPT, "return_token_ids": True})
    own = answer["choices"][0]["token_ids"]
    assert own == (await asked(client, "base"))[1][:3], "a limit and a temperature of its own"
    shutil.copytree(root / "lora00", root / "ada" / "vague")
    status, error = await asked(client, "vague")
    assert (status, error["message"]) == (
        404,
        "model 'vague' cannot be served: its base is not known; "
        "the operator of the server can name it (setting bases.vague)",
    )
    shutil.rmtree(root / "ada" / "vague")


async def refuses_to_guess(client: Client, root: Path, url: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, and by vLLM's endpoint."""
    assert main(["apps", "add", "lora00", str(root / "lora00"), *url]) == 2
    says = r"2 models may be its base \(.*\), and its own configuration names none; name its base"
    assert re.search(says, capsys.readouterr().err)
    body = {"lora_name": "lora00", "lora_path": str(root / "lora00")}
    async with client._session.post("/v1/load_lora_adapter", json=body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, "base_model_name")
        assert re.search(says + r" \(base_model_name\)$", error["message"])


@claim("All adapters of a folder are served on demand, and changes survive a restart", of="fine-tunes")
@pytest.mark.parametrize("restarted", some((False, True), False))  # actors/test_further_applications.py is nearer
async def test_adapters_belong_where_they_belong_and_stay_there(
    root: Path, expected: Expected, capsys: pytest.CaptureFixture[str], restarted: bool
) -> None:
    server = begin(root)
    url = ["--url", server.url]
    try:
        async with Client(server) as client:
            await serves_the_folder(client, root, expected)
            await refuses_to_guess(client, root, url, capsys)
            assert main(["apps", "add", "full", str(root / "lora00"), "--base", "full0", *url]) == 0
            assert capsys.readouterr().out.startswith("full: on full0; ready; shares ")
            assert await asked(client, "full") == (200, expected["full"])
            assert main(["apps", "remove", "terse", *url]) == 0
            assert main(["apps", "remove", "base", *url]) == 0
            assert capsys.readouterr().out.splitlines()[-1] == (
                "base: removed; 2 adapters keep its blocks, 0 B freed; it was the default: requests without a model are "
                "refused until base is added again"
            )
            status, error = await asked(client, None)
            assert (status, error["code"]) == (400, "no_default_model")
            await refuses_to_guess(client, root, url, capsys)
            assert await asked(client, "ann") == (200, expected["ann"])
            assert main(["apps", "remove", "fay", *url]) == 0
            assert (await asked(client, "fay"))[0] == 404, "it is not found again in the folder"
            assert await bases(client) == {"full0": None, "ann": "base", "carl": "base", "full": "full0"}
    finally:
        server.stop()
    if not restarted:
        return
    server = begin(root)
    try:
        assert "base was removed while the server ran, but the settings name it" in server.err
        async with Client(server) as client:
            same = {"base": None, "full0": "base", "terse": "base", "ann": "base", "carl": "base", "full": "full0"}
            assert await bases(client) == same
            assert await asked(client, "full") == (200, expected["full"])
            assert (await asked(client, "fay"))[0] == 404
            assert (await asked(client, None))[0] == 200
    finally:
        server.stop()

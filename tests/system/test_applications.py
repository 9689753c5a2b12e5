"""Applications that come and go while a server serves: over HTTP, with requests under way and processes killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from blockwright.api.commands.cli import main
from blockwright.gpu.weights.export import export
from blockwright.policies.model.tiers import tier_source
from blockwright.tests.adapters import greedy as peft_greedy
from blockwright.tests.adapters import make_adapter, peft_model
from blockwright.tests.checkpoints import make_checkpoint, make_family
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until
from blockwright.tests.zoo.models import infinite, variant
from blockwright.zoo.source import open_source

pytestmark = pytest.mark.system
PROMPT = prompt_of(21, seed=3)


@pytest.fixture(scope="module")
def roots(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of variants of ``model``: another last layer, another head."""
    root = tmp_path_factory.mktemp("roots")
    layers = ("layers.1.mlp", "layers.1.self_attn")
    altered(model, root / "tuned", layers[:1])
    altered(model, root / "other", layers)
    return root


@pytest.fixture(scope="module")
def server(model: Path, roots: Path, pace: Path) -> Iterator[Server]:
    server = Server(
        model,
        workers=2,
        module="blockwright.tests.system.faulty_worker",
        pace=pace,
        app_roots=roots,
        **{"drafts.guest": model.name},
    )
    yield server.whole()
    server.stop()


async def change(client: Client, method: str, where: str, /, **fields: Any) -> tuple[int, Any]:
    async with client._session.request(method, where, json=fields or None) as response:
        return response.status, await response.json()


async def tokens(client: Client, name: str, new: int = 12) -> Any:
    status, answer = await client.post({**body(0, new, PROMPT), "model": name})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


async def names(client: Client) -> dict[str, str | None]:
    return {one["id"]: one["parent"] for one in (await client.get("/v1/models"))[1]["data"]}


async def parameters(client: Client) -> dict[str, int]:
    """Each worker's bytes of parameters, once all workers have said them."""
    found: dict[str, int] = {}

    async def said() -> bool:
        found.update({name: one["memory"]["parameters"] for name, one in (await client.workers()).items()})
        return all(found.values())

    await until(said, "all workers say what they hold")
    return found


@claim("Models are added and removed while the server runs, and no running request fails", of="fine-tunes", headline=True)
async def test_an_application_comes_and_goes_while_others_run(server: Server, model: Path, roots: Path) -> None:
    expected, base = greedy(roots / "tuned", tuple(PROMPT), 12), greedy(model, tuple(PROMPT), 12)
    assert expected != base
    async with Client(server) as client:
        before = await parameters(client)
        running = client.load(8)
        status, answer = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "tuned"))
        assert (status, answer["state"]) == (200, "ready"), answer
        assert "% of its blocks, +" in answer["summary"]
        assert 0 < answer["bytes"]["own"] < answer["bytes"]["shared"]
        assert await names(client) == {model.name: None, "tuned": model.name}
        assert await tokens(client, "tuned") == list(expected)
        assert await tokens(client, model.name) == list(base)
        again, same = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "tuned"))
        assert (again, same) == (200, answer), "asked twice, done once"
        taken, error = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "other"))
        assert (taken, error["error"]["param"]) == (409, "name")
        ending = client.begin({**body(0, 60), "model": "tuned"})
        await until(lambda: ending.tokens, "the first token")
        removal = asyncio.create_task(change(client, "DELETE", "/admin/apps/tuned"))
        while (late := await client.post({**body(0, 4), "model": "tuned"}))[0] == 200:
            pass  # the removal has not reached the gateway yet
        assert (late[0], late[1]["error"]["code"]) == (404, "model_not_found")
        status, answer = await removal
        assert (status, answer["state"], answer["adapters"], answer["default"]) == (200, "removed", 0, model.name)
        assert answer["freed"] > 0
        await client.finished()
        assert (ending.finish, len(ending.tokens), ending.error) == ("length", 60, None), "what ran has ended in order"
        assert all(one.finish == "length" and one.error is None for one in running)
        assert await names(client) == {model.name: None}
        assert await parameters(client) == before, "its memory is free again"
        gone, error = await change(client, "DELETE", "/admin/apps/tuned")
        assert (gone, error["error"]["param"]) == (404, "name")


@claim("A family is added, replaced and removed with all its tiers while the server runs", of="families")
async def test_a_family_comes_and_goes_with_its_tiers(server: Server, model: Path, roots: Path) -> None:
    family, other = make_family(model, roots / "family", {1: "low"}), make_family(model, roots / "fewer", {2: "shared"})
    tier = export(open_source(tier_source(str(family), 1)), roots / "tier")
    async with Client(server) as client:
        before = await parameters(client)
        status, answer = await change(client, "POST", "/admin/apps", name="f", path=str(family))
        assert (status, answer["state"]) == (200, "ready"), answer
        heads = sum(tensor.nbytes for tensor in load_file(family / "exits.safetensors").values())
        assert (answer["bytes"]["own"], answer["summary"].partition("; ")[2]) == (heads, "tiers: f:1")
        assert await names(client) == {model.name: None, "f": model.name, "f:1": "f", "f:auto": "f"}
        assert await tokens(client, "f:1") == list(greedy(tier, tuple(PROMPT), 12))
        status, error = await change(client, "DELETE", "/admin/apps/f:1")
        assert (status, error["error"]["param"]) == (409, "name")
        assert error["error"]["message"] == "f:1 is a tier of f, and a family goes as a whole; remove f"
        status, error = await change(client, "DELETE", "/admin/apps/f:auto")
        assert (status, error["error"]["message"]) == (409, "f:auto chooses among the tiers of f; remove f")
        status, error = await change(client, "POST", "/admin/apps", name="f:auto", path=str(other))
        assert (status, error["error"]["message"]) == (409, "f:auto chooses among the tiers of f; choose another name")
        for path in ("/admin/apps/f:1", "/admin/apps"):  # replaced, or added once more
            status, error = await change(
                client, "POST", path, path=str(other), **({} if path[-1] == "1" else {"name": "f:1"})
            )
            assert (status, error["error"]["param"]) == (409, "name")
            assert error["error"]["message"] == "f:1 is a tier of f, and a family is replaced as a whole; replace f"
        status, answer = await change(client, "POST", "/admin/apps/f", path=str(other))
        assert (status, answer["summary"].partition("; ")[2]) == (200, "tiers: f:2")
        await settled(client, {model.name, "f", "f:2", "f:auto"})
        for path, base in ((roots / "tuned", {}), (make_adapter(model, roots / "adapter"), {"base": model.name})):
            status, answer = await change(client, "POST", "/admin/apps", name="h:auto", path=str(path), **base)
            assert status == 200, answer
            status, error = await change(client, "POST", "/admin/apps", name="h", path=str(other))
            says = "h:auto chooses among the tiers of h; another model is served under that id, remove that one first"
            assert (status, error["error"]["message"]) == (409, says)
            await change(client, "DELETE", "/admin/apps/h:auto")
        status, answer = await change(client, "POST", "/admin/apps", name="f:3", path=str(roots / "tuned"))
        assert status == 200, answer
        three = make_family(model, roots / "three", {1: "shared", 2: "low"})
        status, answer = await change(client, "POST", "/admin/apps", name="g", path=str(three))
        assert status == 200, answer
        status, answer = await change(client, "DELETE", "/admin/apps/g")
        assert (status, answer["freed"]) == (200, heads), "the heads that only it had"
        for name in ("f", "f:3"):
            status, answer = await change(client, "DELETE", f"/admin/apps/{name}")
            assert (status, answer["state"]) == (200, "removed")
        assert await names(client) == {model.name: None}
        assert await parameters(client) == before, "its memory is free again"


async def settled(client: Client, expected: set[str]) -> None:
    """Return when these models are served; the tiers of a replaced family end behind it."""
    while {*await names(client)} != expected:
        pass


async def test_what_cannot_be_served_is_refused_and_nothing_changes(server: Server, model: Path, roots: Path) -> None:
    """Pickles, what is no checkpoint, what has diverged, what leaves the roots, what does not fit the memory."""
    pickled = roots / "pickled"
    if not pickled.exists():
        pickled.mkdir()
        for name in ("config.json", "tokenizer.json"):
            (pickled / name).write_bytes((model / name).read_bytes())
        (pickled / "pytorch_model.bin").write_bytes(b"\x80\x02.")
        wide = json.loads((model / "config.json").read_text())
        (roots / "torn").mkdir()
        (roots / "torn" / "config.json").write_text(json.dumps({**wide, "hidden_size": 96}))
        for name in ("model.safetensors", "tokenizer.json"):
            (roots / "torn" / name).write_bytes((model / name).read_bytes())
        make_checkpoint(roots / "large", vocab_size=20000, hidden_size=512)
        (roots / "away").symlink_to(model)
        variant(model, roots / "diverged", {"layers.1.mlp.up_proj": infinite})
    async with Client(server) as client:
        before = await parameters(client), await names(client), (await client.get("/admin/cluster"))[1]["version"]
        running = client.load(4)
        for path, says in (
            (roots / "pickled", "only as pickles"),
            (roots / "torn", "has shape"),
            (roots / "diverged", "tensor model.layers.1.mlp.up_proj.weight has values that are NaN or infinite"),
            (roots / "large", "are missing; remove another application, or give workers more memory"),
            (roots / "away", "is not below a root of app_roots"),
            (roots / ".." / model.name, "is not below a root of app_roots"),
            (roots / "nothing", "there is no folder"),
        ):
            status, answer = await change(client, "POST", "/admin/apps", name="bad", path=str(path))
            assert (status, answer["error"]["param"]) == (400, "path"), answer
            assert says in answer["error"]["message"], path
        status, answer = await change(client, "POST", "/admin/apps", name="guest", path=str(roots / "large"))
        says = (
            f"but {model.name} has a vocabulary of 384 tokens and guest one of 20,000; give a model of the same vocabulary"
        )
        assert (status, answer["error"]["message"]) == (400, f"drafts.guest is {model.name!r}, {says}")
        status, answer = await change(client, "POST", "/admin/apps", name="../bad", path=str(roots / "tuned"))
        assert (status, answer["error"]["param"]) == (400, "name")
        status, answer = await change(client, "POST", "/admin/apps/nobody", path=str(roots / "tuned"))
        assert (status, answer["error"]["param"]) == (404, "name")
        await client.finished()
        assert all(one.finish == "length" and one.error is None for one in running)
        after = await parameters(client), await names(client), (await client.get("/admin/cluster"))[1]["version"]
        assert after == before


async def test_a_longer_and_deeper_model_of_another_shape_can_come(server: Server, roots: Path) -> None:
    folder = roots / "deep"
    make_checkpoint(folder, "qwen2", num_hidden_layers=5, max_position_embeddings=1024)
    async with Client(server) as client:
        status, answer = await change(client, "POST", "/admin/apps", name="deep", path=str(folder))
        assert (status, answer["max_model_len"]) == (200, 1024), answer
        assert await tokens(client, "deep") == list(greedy(folder, tuple(PROMPT), 12))
        assert (await change(client, "DELETE", "/admin/apps/deep"))[0] == 200


@claim("A new version of a model takes over without a failed request, and old requests end on the old one", of="fine-tunes")
async def test_a_new_version_takes_over_and_no_request_fails(server: Server, model: Path, roots: Path) -> None:
    old, new = (list(greedy(roots / name, tuple(PROMPT), 12)) for name in ("tuned", "other"))
    assert old != new
    async with Client(server) as client:
        before = await parameters(client)
        assert (await change(client, "POST", "/admin/apps", name="app", path=str(roots / "tuned")))[0] == 200
        long = client.begin({**body(0, 60, PROMPT), "model": "app"})
        await until(lambda: long.tokens, "the first token")
        change_ = asyncio.create_task(change(client, "POST", "/admin/apps/app", path=str(roots / "other")))
        found = []
        while not change_.done():
            found.append(await tokens(client, "app"))
        assert (await change_)[0] == 200, await change_
        assert all(one in (old, new) for one in found), "each of one version alone"
        assert await tokens(client, "app") == new
        await client.finished()
        assert (long.finish, long.error, long.tokens[:12]) == ("length", None, old), "it ended on the version it began on"
        models = (await client.get("/v1/models"))[1]["data"]
        assert [one["id"] for one in models] == [model.name, "app"]
        assert (await change(client, "DELETE", "/admin/apps/app"))[0] == 200
        await until(lambda: parameters_now(server) == before, "the old version's blocks are unloaded")


@claim("Models are added and removed while the server runs, and no running request fails", of="fine-tunes", headline=True)
async def test_adapters_come_and_go_by_both_endpoints(server: Server, model: Path, roots: Path) -> None:
    """What they answer is what peft computes; one that is of another base is refused."""
    for name, seed in (("ann", 1), ("bob", 2)):
        make_adapter(model, roots / name, seed)
    stranger = make_checkpoint(roots / "stranger", hidden_size=96)
    make_adapter(stranger, roots / "eve")
    async with Client(server) as client:
        before = await parameters(client)
        status, answer = await change(client, "POST", "/admin/apps", name="ann", path=str(roots / "ann"), base=model.name)
        assert (status, answer["state"]) == (200, "ready"), answer
        assert answer["bytes"]["own"] < answer["bytes"]["shared"] / 4
        async with client._session.post(
            "/v1/load_lora_adapter", json={"lora_name": "bob", "lora_path": str(roots / "bob")}
        ) as response:
            message = f"Success: LoRA adapter 'bob' added successfully. Its base is '{model.name}'."
            assert (response.status, await response.text()) == (200, message)
        assert await names(client) == {model.name: None, "ann": model.name, "bob": model.name}
        for name in ("ann", "bob"):
            expected = peft_greedy(peft_model(model, roots / name), PROMPT, 12)
            assert await tokens(client, name) == expected, name
        assert await tokens(client, model.name) == list(greedy(model, tuple(PROMPT), 12))
        status, answer = await change(client, "POST", "/admin/apps", name="eve", path=str(roots / "eve"))
        assert (status, answer["error"]["param"]) == (400, "path"), answer
        status, answer = await change(client, "POST", "/admin/apps", name="eve", path=str(roots / "eve"), base="nobody")
        assert (status, answer["error"]["param"]) == (400, "base"), answer
        for name in ("ann", "bob"):
            assert (await change(client, "DELETE", f"/admin/apps/{name}"))[0] == 200
        assert await parameters(client) == before


@claim("Deaths of workers during an addition lose no request", of="fine-tunes")
async def test_kills_during_an_addition(server: Server, roots: Path) -> None:
    """It is there afterwards, on both workers."""
    async with Client(server) as client:
        adding = asyncio.create_task(change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "tuned")))
        os.kill((await client.workers())["w0"]["pid"], signal.SIGKILL)
        status, answer = await adding
        assert (status, answer["state"]) == (200, "ready"), answer
        assert await tokens(client, "tuned") == list(greedy(roots / "tuned", tuple(PROMPT), 12))
        await until(server._whole, "all workers are back")
        routes = (await client.get("/admin/cluster"))[1]["routes"]
        assert {route["home"] for route in routes if route["application"] == "tuned"} == {"w0", "w1"}
        assert (await change(client, "DELETE", "/admin/apps/tuned"))[0] == 200


async def test_two_at_once(server: Server, roots: Path) -> None:
    """Of one name and path: one addition. Of one name and two paths: one of them is refused because the name is taken."""
    async with Client(server) as client:
        paths = [roots / "tuned", roots / "tuned", roots / "other"]
        answers = await asyncio.gather(*[change(client, "POST", "/admin/apps", name="x", path=str(path)) for path in paths])
        assert answers[0] == answers[1]
        assert sorted(status for status, _ in answers) in ([200, 200, 409], [200, 409, 409])
        both = asyncio.gather(
            change(client, "DELETE", "/admin/apps/x"),
            change(client, "POST", "/admin/apps", name="x", path=str(roots / "other")),
        )
        statuses = [status for status, _ in await both]
        assert statuses[0] == 200
        assert statuses[1] in (200, 409)
        await change(client, "DELETE", "/admin/apps/x")


@claim("`apps add` and `zoo add` say how much a model shares and how many bytes it adds", of="command-line")
def test_the_commands(server: Server, model: Path, roots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, tuned = ["--url", server.url], str(roots / "tuned")
    assert main(["apps", "add", "tuned", tuned, *url]) == 0
    assert re.fullmatch(r"tuned: ready; shares \d\d% of its blocks, \+[\d.]+ KiB\n", capsys.readouterr().out)
    assert main(["apps", *url]) == 0
    summary, default, _, head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert summary == ["2", "models:", "2", "ready"]
    assert default == f"requests without a model go to {model.name}".split()
    assert head == ["APPLICATION", "STATE", "BASE", "CHECKPOINT"]
    assert rows == [[model.name, "ready", "-", str(model)], ["tuned", "ready", model.name, os.path.realpath(tuned)]]
    assert main(["ps", "--once", *url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(rf"tuned +{model.name} +ready +w[01], w[01] ", next(line for line in lines if line.startswith("tuned")))
    assert main(["apps", "add", "tuned", str(roots / "other"), *url]) == 2
    assert "model 'tuned' is served already, from" in capsys.readouterr().err
    assert main(["apps", "add", "tuned", str(roots / "other"), "--replace", *url]) == 0
    assert main(["apps", "remove", "tuned", *url]) == 0
    said = rf"tuned: removed; [\d.]+ KiB freed; requests without a model go to {model.name}"
    assert re.fullmatch(said, capsys.readouterr().out.splitlines()[-1])
    assert main(["apps", "remove", "tuned", *url]) == 2
    assert f"model 'tuned' does not exist; there are: {model.name}" in capsys.readouterr().err


def parameters_now(server: Server) -> dict[str, int]:
    with urllib.request.urlopen(server.url + "/admin/cluster", timeout=PATIENCE) as answer:
        return {worker["id"]: worker["memory"]["parameters"] for worker in json.load(answer)["workers"]}

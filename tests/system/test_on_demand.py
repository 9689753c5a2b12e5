"""Requests longer than what loaded models leave of the memory: idle models are unloaded for them, also after a kill -9.
Requests for a model that cannot be loaded get the reason, and it is loaded once it can be."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from blockwright.api.demo.family import present
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import Client, body, check
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_batches import create_batch
from blockwright.tests.waiting import PATIENCE, until

pytestmark = pytest.mark.system
EXAMPLES = Path(__file__).parents[2] / "examples"
FAMILY = sorted(present(EXAMPLES / "demo-family"))
MODELS = ["demo-checkpoint", *FAMILY]
LONG = 200  # tokens of a prompt; with its answer it has no room beside the models that are loaded


@pytest.fixture
def server(serve: Callable[..., Server]) -> Iterator[Server]:
    apps = [word for name in FAMILY for word in ("--app", f"{name}={EXAMPLES / 'demo-family' / name}")]
    options = {
        "module": "blockwright",
        "pace": "",
        "memory": int(8.5 * (1 << 20)),
        "arguments": [*apps, "--dtype", "float32"],
    }
    made = serve(EXAMPLES / "demo-checkpoint", workers=1, **options)
    yield made.whole()
    made.stop()


@claim("Idle models are unloaded for a request that is longer than the loaded ones leave room for", of="fine-tunes")
async def test_each_model_answers_what_fits_once_others_are_away(server: Server) -> None:
    requests = [body(i, prompt=prompt_of(LONG, vocabulary=60, seed=i), model=model) for i, model in enumerate(MODELS)]
    async with Client(server) as client:
        answers = []
        for request in requests * 2:  # one after the other: what was asked for before is idle
            answers.append(client.begin(request))
            await client.finished()
        expected = [answer.tokens for answer in answers[: len(MODELS)]]
        check(answers, expected * 2)
        status, refused = await client.post(body(0, prompt=prompt_of(440, vocabulary=60), model=FAMILY[0]))
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
        limit = int(refused["error"]["message"].partition("has memory for ")[2].partition(";")[0])
        assert LONG + 60 < limit < 500, "what one model alone leaves"
        answers = [client.begin(request) for request in requests * 2]
        await until(lambda: sum(answer.done for answer in answers) >= 2)
        await client.kill("w0")
        await client.finished()
        check(answers, expected * 2)


@pytest.mark.nightly
async def test_a_batch_for_a_model_that_is_not_loaded(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Also of requests that are longer than what loaded models leave. What is in no worker was waited for, for ever."""
    apps = [word for name in FAMILY for word in ("--app", f"{name}={EXAMPLES / 'demo-family' / name}")]
    options = {"module": "blockwright", "pace": "", "memory": int(8.5 * (1 << 20)), "batch_dir": tmp_path / "batches"}
    server = serve(EXAMPLES / "demo-checkpoint", workers=1, arguments=[*apps, "--dtype", "float32"], **options).whole()
    async with Client(server) as client:
        states = (await client.get("/health/ready"))[1]["applications"]
        absent = [name for name in FAMILY if states[name] == "on demand"]
        bodies = [body(i, 8, prompt_of(LONG, vocabulary=60, seed=i), model=absent[i % len(absent)]) for i in range(4)]
        async with ClientSession(server.url) as session:
            ids = [await create_batch(session, [one]) for one in bodies]

            async def completed() -> bool:
                found = [(await client.get(f"/v1/batches/{id}"))[1] for id in ids]
                assert not any(one["request_counts"]["failed"] for one in found)
                return all(one["status"] == "completed" for one in found)

            await until(completed)
    server.stop()


@claim("A model that cannot be loaded gives each request the reason at once and is tried again later", of="fine-tunes")
@pytest.mark.nightly
async def test_a_request_for_a_model_without_files_gets_that_reason(serve: Callable[..., Server], tmp_path: Path) -> None:
    for name in FAMILY:
        shutil.copytree(EXAMPLES / "demo-family" / name, tmp_path / name)
    apps = [word for name in FAMILY for word in ("--app", f"{name}={tmp_path / name}")]
    options = {"module": "blockwright", "pace": "", "memory": int(8.5 * (1 << 20))}
    server = serve(EXAMPLES / "demo-checkpoint", workers=1, arguments=[*apps, "--dtype", "float32"], **options).whole()
    async with Client(server) as client:
        states = (await client.get("/health/ready"))[1]["applications"]
        name = next(name for name in FAMILY if name != "shout" and states[name] == "on demand")
        weights = tmp_path / name / "adapter_model.safetensors"
        weights.rename(tmp_path / "elsewhere")
        asked = body(0, new=4, prompt=prompt_of(8, vocabulary=60), model=name)
        status, refused = await client.post(asked)
        assert (status, refused["error"]["code"]) == (503, "unavailable")
        outcome = refused["error"]["message"]
        assert outcome.startswith(f"model '{name}' cannot be loaded: worker w0: {name}/adapter_model.safetensors: ")
        assert str(tmp_path) not in outcome

        async def failed() -> bool:
            """In a moment: a question that the gateway sent before it was notified has the worker try once more."""
            return bool((await client.get("/health/ready"))[1]["applications"][name] == "failed")

        await until(failed, "failed")
        (tmp_path / "elsewhere").rename(weights)
        async with asyncio.timeout(PATIENCE):
            while (answered := await client.post(asked))[0] != 200:
                assert "cannot be loaded" in answered[1]["error"]["message"]
        states = (await client.get("/health/ready"))[1]["applications"]
        assert states[name] == "ready"
    server.stop()

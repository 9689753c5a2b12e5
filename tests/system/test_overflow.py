"""A model whose activations overflow: its clients get an error in place of noise, and those of other models their tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, body, check
from blockwright.tests.system.server import Server

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def loud(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every weight of it is finite, and nothing that it computes."""
    folder = tmp_path_factory.mktemp("loud") / "loud"
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for part in ("gate", "up", "down"):
        tensors[f"model.layers.1.mlp.{part}_proj.weight"].sign_().mul_(1e19)
    save_file(tensors, folder / "model.safetensors")
    return folder


@claim("A model whose logits overflow ends the request with an error and no other request", of="numerics")
@pytest.mark.parametrize("pipeline", [2, pytest.param(1, marks=pytest.mark.nightly)])
async def test_its_clients_are_notified_and_others_get_their_tokens(
    serve: Callable[..., Server], loud: Path, expected: list[list[int]], pipeline: int
) -> None:
    server = serve(arguments=["--app", f"loud={loud}"], pipeline=pipeline).whole()
    async with Client(server) as client:
        await client.ready()
        answers, wrong = client.load(6), [client.begin(body(index, model="loud")) for index in range(4)]
        status, answer = await client.post(body(0, model="loud", logprobs=2))
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (500, "model_overflow", "model")
        assert "the activations of the model overflow" in answer["error"]["message"]
        await client.finished()
        check(answers, expected[:6])
        assert [(one.error or {}).get("code") for one in wrong] == ["model_overflow"] * 4
        assert not any(one.tokens for one in wrong)
        await client.ready()  # nothing of them is left
    server.stop()

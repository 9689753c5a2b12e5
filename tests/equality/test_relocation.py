"""Relocation on a whole server: a model that is spread for lack of memory comes together where its traffic is worth it.

Its requests move while they run, and answer bit for bit as the model alone does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.equality.test_variants import ask
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import until

LENGTH = 96
NAMES = "abc"
PROMPTS = [prompt_of(length, seed=5) for length in (9, 20, 33)]


def models(tmp_path: Path) -> dict[str, Path]:
    """Three models that share nothing."""
    return {name: make_checkpoint(tmp_path / name, seed=n, num_hidden_layers=4) for n, name in enumerate(NAMES)}


def memory_for_most(folder: Path) -> int:
    """Return bytes of a worker, two of which hold three models but not each of them whole."""
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    return int(1.9 * size)


def hops_of(view: dict[str, Any]) -> dict[str, int]:
    """Return the fewest hops of each model's routes."""
    found: dict[str, int] = {}
    for route in view["routes"]:
        found[route["application"]] = min(len(route["hops"]), found.get(route["application"], 9))
    return found


async def together(server: Served, model: str, alone: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Ask a model, which answers as it did; return the cluster's view once it is whole on a worker."""
    found = await asyncio.gather(*(ask(server, prompt, model) for prompt in PROMPTS))
    assert [choice for _, choice in found] == alone
    view = await server.cluster()
    return view if hops_of(view)[model] == 1 and not view["placement"]["relocations"]["open"] else None


@claim("A model that is spread over workers comes together where its traffic is, while its requests run", of="adaptive")
async def test_a_model_with_traffic_comes_together_and_answers_as_before(tmp_path: Path) -> None:
    folders = models(tmp_path)
    options: dict[str, Any] = {"max_model_len": LENGTH, "chunk_size": 16, "traffic_window": 3.0}
    async with serve(folders, workers=2, memory=memory_for_most(folders["a"]), **options) as server:
        before = hops_of(await server.cluster())
        (model,) = [name for name, hops in before.items() if hops > 1]
        alone = [(await ask(server, prompt, model))[1] for prompt in PROMPTS]
        view = await until(lambda: together(server, model, alone))
        found = await asyncio.gather(*(ask(server, prompt, model) for prompt in PROMPTS))
        async with server.session.get(f"{server.url}/metrics") as answer:
            metrics = await answer.text()
    assert [choice for _, choice in found] == alone
    assert max(hops_of(view).values()) == 2, "another one gave way"
    (first, *_) = [one for one in view["placement"]["transfers"] if one["model"] == model]
    assert first["bytes"] == first["positions"] * 64 * 4
    assert f'blockwright:transfers_total{{before="{first["before"]}",model_name="{model}"' in metrics

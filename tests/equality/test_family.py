"""Tiers of a family on one server: each answers as its export alone, bit for bit, and as transformers on the export."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.weights.export import export
from blockwright.policies.model.tiers import tier_source
from blockwright.tests.adapters import confirm as confirm_adapter
from blockwright.tests.adapters import make_adapter, peft_model
from blockwright.tests.checkpoints import make_checkpoint, make_family
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.gpu.reference import confirm, prompt_of
from blockwright.zoo.source import open_source

Checkpoints = Callable[..., Path]
EXITS = {1: "low", 3: "shared"}
IDS = ["m:1", "m:3", "m"]
PROMPTS = [prompt_of(length, seed=7) for length in (5, 40, 70)]
NEW = 24


async def answers(server: Served, jobs: list[tuple[str, tuple[int, ...]]]) -> list[tuple[list[int], Any]]:
    """Tokens and log-probabilities of all jobs, asked at once."""
    found = await asyncio.gather(*(server.complete(prompt, NEW, model=model, logprobs=3) for model, prompt in jobs))
    return [(one["token_ids"], (one["logprobs"]["token_logprobs"], one["logprobs"]["top_logprobs"])) for one in found]


@claim("Tiers of a family answer bit for bit as their exports, alone and mixed in one batch", of="families", headline=True)
@pytest.mark.parametrize(
    ("architecture", "dtype", "backend"),
    [
        ("llama", "float32", "native"),
        ("llama-tied", "bfloat16", "native"),
        ("llama", "bfloat16", "torch"),
        pytest.param("gpt-neox", "float32", "torch", marks=pytest.mark.nightly),
    ],
)
async def test_a_tier_answers_as_its_export(tmp_path: Path, architecture: str, dtype: str, backend: str) -> None:
    base = make_checkpoint(tmp_path / "base", architecture, dtype=dtype, num_hidden_layers=4)
    family = make_family(base, tmp_path / "m", EXITS)
    folders = {f"m:{k}": export(open_source(tier_source(str(family), k)), tmp_path / f"m-{k}") for k in EXITS} | {"m": base}
    common: dict[str, Any] = {"dtype": dtype, "backend": backend, "prefix_cache": False}
    jobs = [(model, prompt) for prompt in PROMPTS for model in IDS]
    async with serve({name.replace(":", "-"): path for name, path in folders.items()}, **common) as server:
        alone = [(await answers(server, [(model.replace(":", "-"), prompt)]))[0] for model, prompt in jobs]
    async with serve({"m": family}, **common) as server:
        mixed = await answers(server, jobs)
        single = [(await answers(server, [job]))[0] for job in jobs]
    assert mixed == alone
    assert single == alone
    if dtype == "float32":
        judged = [
            confirm(folders[model], prompt, tuple(tokens)) for (model, prompt), (tokens, _) in zip(jobs, mixed, strict=True)
        ]
        assert sum(judged) > NEW * len(jobs) // 2, "most of the tokens are judged"
    assert len({tuple(tokens) for tokens, _ in mixed}) == len(jobs), "tiers differ"


@claim("A tier answers bit for bit alike where it enters at the exit of a lower one, in prompts and answers", of="families")
@pytest.mark.parametrize(
    ("architecture", "dtype", "backend"),
    [
        ("llama", "float32", "native"),
        ("llama-tied", "bfloat16", "native"),
        ("llama", "bfloat16", "torch"),
        pytest.param("gpt-neox", "float32", "torch", marks=pytest.mark.nightly),
    ],
)
async def test_a_tier_enters_where_a_lower_one_left(tmp_path: Path, architecture: str, dtype: str, backend: str) -> None:
    base = make_checkpoint(tmp_path / "base", architecture, dtype=dtype, num_hidden_layers=4)
    family, prompt = make_family(base, tmp_path / "m", EXITS), prompt_of(70, seed=8)
    common: dict[str, Any] = {"dtype": dtype, "backend": backend, "chunk_size": 24}
    jobs = [(model, prompt) for model in IDS]
    async with serve({"m": family}, **common) as server:
        entering = [(await answers(server, [job]))[0] for job in jobs]
        more = (*prompt_of(40, seed=9), *prompt_of(9, seed=10))
        [(answer, _)] = await answers(server, [("m:1", more)])
        up = "m", (*more, *answer)
        mixed = [up, ("m:3", up[1]), ("m:1", prompt_of(20, seed=11))]
        entering += await answers(server, mixed)
        drafted = await server.complete(prompt_of(33, seed=12), NEW, model="m:3", draft="tier:1", draft_tokens=3)
        before = await server.counters("entered_tokens")
        mixed.append(("m", (*prompt_of(33, seed=12), *drafted["token_ids"])))
        entering += await answers(server, mixed[-1:])
        assert await server.counters("entered_tokens") == before + 48, "drafts by a tier leave hidden states, too"
        assert await server.counters("drafted_tokens") > 0
        # m:3 enters 4 pages of the prompt behind one layer, m as many behind three, and at least one of both 4 of the answer
        assert await server.counters("entered_tokens") >= 64 + 64 + 64
    async with serve({"m": family}, prefix_cache=False, **common) as server:
        alone = [(await answers(server, [job]))[0] for job in (*jobs, *mixed)]
        assert not await server.counters("entered_tokens")
    assert entering == alone


@claim("An adapter goes on the top tier of a family, or on the tier that its base names", of="families")
async def test_tiers_are_listed_and_take_adapters_that_name_them(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama", num_hidden_layers=4)
    family = make_family(base, tmp_path / "f", EXITS)
    three = export(open_source(tier_source(str(family), 3)), tmp_path / "three")
    adapters = {
        "tuned": make_adapter(base, tmp_path / "tuned"),
        "tuned-3": make_adapter(three, tmp_path / "tuned-3", seed=1),
    }
    config = adapters["tuned"] / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(family)}))
    settings = {"bases": {"tuned-3": "m:3"}, "exits": {"plain": "2"}}
    async with serve({"m": family, "plain": base, **adapters}, **settings) as server:
        ids = ["m", "m:1", "m:3", "plain", "plain:2", "tuned", "tuned-3"]
        models = (await got(server, "/v1/models"))["data"]
        listed = ["m", "m:1", "m:3", "m:auto", "plain", "plain:2", "plain:auto", "tuned", "tuned-3"]
        assert [one["id"] for one in models] == listed
        apps = (await server.cluster())["applications"]
        assert {name: apps[name]["base"] for name in ids[1:3]} == {"m:1": "m", "m:3": "m"}
        owned = {name: apps[name]["bytes"]["own"] for name in ids[:5]}
        head = 4 * (64 + 384 * 64)
        assert owned == {"m": 0, "m:1": head, "m:3": 0, "plain": 0, "plain:2": 0}, "of m all is plain's, too"
        assert (apps["tuned"]["base"], apps["tuned-3"]["base"]) == ("m", "m:3")
        for name, over in {"tuned": base, "tuned-3": three}.items():
            prompt = prompt_of(30, seed=3)
            choice = await server.complete(prompt, NEW, model=name)
            confirm_adapter(peft_model(over, adapters[name]), prompt, choice["token_ids"])
        outcome = await got(server, "/v1/models/m:2", 404)
        assert outcome["error"]["message"].endswith("does not exist; m has the tiers m:1, m:3, m (all layers)")
        outcome = await got(server, "/v1/models/plain:3", 404)
        assert outcome["error"]["message"].endswith("does not exist; plain has the tiers plain:2, plain (all layers)")


async def got(server: Served, path: str, status: int = 200) -> dict[str, Any]:
    async with server.session.get(f"{server.url}{path}") as answer:
        content: dict[str, Any] = await answer.json()
        assert answer.status == status, content
    return content

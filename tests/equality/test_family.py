"""Tiers of a family on one server: each answers as its export alone, bit for bit, and as transformers on the export."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.weights.export import export
from blockwright.policies.model.tiers import tier_source
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
    [("llama", "float32", "native"), ("llama-tied", "bfloat16", "native"), ("gpt-neox", "float32", "torch")],
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
    if backend == "native":
        assert mixed == alone
        assert single == alone
    assert [tokens for tokens, _ in mixed] == [tokens for tokens, _ in alone] == [tokens for tokens, _ in single]
    if dtype == "float32":
        judged = [
            confirm(folders[model], prompt, tuple(tokens)) for (model, prompt), (tokens, _) in zip(jobs, mixed, strict=True)
        ]
        assert sum(judged) > NEW * len(jobs) // 2, "most of the tokens are judged"
    assert len({tuple(tokens) for tokens, _ in mixed}) == len(jobs), "tiers differ"

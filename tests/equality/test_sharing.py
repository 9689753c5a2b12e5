"""Applications that share tensors share memory, sweeps and the KV of equal prompts; each answers as its own reference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import confirm, prompt_of

Checkpoints = Callable[..., Path]
NEW = 32


def altered(base: Path, folder: Path, marks: tuple[str, ...]) -> Path:
    """A copy of a checkpoint whose tensors named with one of ``marks`` differ."""
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if any(mark in name for mark in marks):
            tensors[name] = tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@claim(
    "A copy of a served model adds no parameter bytes, and a fine-tune adds only the tensors that differ",
    of="fine-tunes",
    headline=True,
)
@pytest.mark.parametrize(
    ("architecture", "backend"), [("llama", "native"), ("llama", "torch"), ("gpt-neox", "native"), ("phi3", "torch")]
)
async def test_a_copy_adds_nothing_and_an_upper_half_only_itself(
    checkpoint: Checkpoints, tmp_path: Path, architecture: str, backend: str
) -> None:
    base = checkpoint(architecture, num_hidden_layers=4)
    upper = altered(base, tmp_path / "upper", ("layers.2.", "layers.3.", "lm_head", "embed_out"))
    copy = altered(base, tmp_path / "copy", ())
    sizes = {}
    for name, applications in {
        "one": {"base": base},
        "copy": {"base": base, "copy": copy},
        "upper": {"base": base, "upper": upper},
    }.items():
        async with serve(applications, backend=backend) as server:
            sizes[name] = (await server.cluster())["workers"][0]["memory"]["parameters"]
            async with server.session.get(f"{server.url}/v1/models") as answer:
                models = {model["id"]: (model["parent"], model["root"]) for model in (await answer.json())["data"]}
            assert models == {one: (None if one == "base" else "base", "base") for one in applications}
    assert sizes["copy"] == sizes["one"]
    assert sizes["one"] * 1.3 < sizes["upper"] < sizes["one"] * 1.7


@claim("Variants share the KV cache below the first layer in which they differ", of="fine-tunes")
@claim("Requests of all variants run in the same sweeps, in one product where they share a block", of="fine-tunes")
async def test_equal_prompts_share_the_lower_half_and_all_rows_run_together(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama", num_hidden_layers=4)
    applications = {
        "base": base,
        "copy": altered(base, tmp_path / "copy", ()),
        "upper": altered(base, tmp_path / "upper", ("layers.2.", "layers.3.", "lm_head")),
        "middle": altered(base, tmp_path / "middle", ("layers.1.mlp",)),
        "lower": altered(base, tmp_path / "lower", ("embed_tokens",)),
    }
    async with serve(applications) as server:
        view = await server.cluster()
        blocks = {name: view["applications"][name]["blocks"] for name in applications}
        assert blocks["copy"] == blocks["base"]
        assert set(blocks["upper"]) & set(blocks["base"]), "cut where they part"
        assert set(blocks["middle"]) & set(blocks["base"]), "the parts around a difference are shared"
        prompt = prompt_of(70, seed=3)
        assert (await server.cluster())["kv_pages_shared"] == 0
        for name, path in applications.items():
            choice = await server.complete(prompt, NEW, model=name)
            assert confirm(path, prompt, tuple(choice["token_ids"])), name
            shared = (await server.cluster())["kv_pages_shared"]
            assert (shared > 0) == (name != "base")
        cached = await server.counters("cached_tokens")
        assert cached == 64, "only the copy skips: four pages of sixteen"
        prompts = [prompt_of(5 + i, seed=i) for i in range(10)]
        jobs = [(name, prompt) for prompt in prompts for name in applications]
        answers = await asyncio.gather(*(server.complete(prompt, NEW, model=name) for name, prompt in jobs))
        for (name, prompt), choice in zip(jobs, answers, strict=True):
            assert confirm(applications[name], prompt, tuple(choice["token_ids"])), name


async def test_variants_with_sliding_windows_over_a_pipeline(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Gemma 2, whose layers alternate: the lower half's KV is shared, cached prefixes are skipped, tokens stay equal."""
    base = checkpoint("gemma2", num_hidden_layers=4)
    applications = {"base": base, "upper": altered(base, tmp_path / "upper", ("layers.2.", "layers.3."))}
    async with serve(applications, workers=2, pipeline=2) as server:
        for length in (70, 50):
            prompt = prompt_of(length, seed=3)
            for name in (*applications, *applications):
                choice = await server.complete(prompt, NEW, model=name)
                assert confirm(applications[name], prompt, tuple(choice["token_ids"])), name
        assert (await server.cluster())["kv_pages_shared"] > 0
        assert await server.counters("cached_tokens") >= 2 * (64 + 48)


@claim("Equal prompt prefixes are computed once and then read from the cache", of="serving", headline=True)
async def test_32_equal_prompts_compute_the_prefix_once_also_when_the_first_goes_away(checkpoint: Checkpoints) -> None:
    path = checkpoint("llama")
    prompt = prompt_of(300, seed=1)
    async with serve({"m": path}, chunk_size=32, sweep_tokens=256) as server:
        answers = await asyncio.gather(*(server.complete(prompt, 4) for _ in range(32)))
        assert len({tuple(choice["token_ids"]) for choice in answers}) == 1
        computed = await server.counters("computed_tokens")
        assert computed <= 300 + 31 * (300 % 16) + 32 * 4
    async with serve({"m": path}, chunk_size=32, sweep_tokens=256) as server:
        first = asyncio.create_task(server.complete(prompt, 4))
        while not await server.counters("computed_tokens"):
            pass
        others = [asyncio.create_task(server.complete(prompt, 4)) for _ in range(31)]
        first.cancel()
        assert {tuple(c["token_ids"]) for c in await asyncio.gather(*others)} == {tuple(answers[0]["token_ids"])}
        assert await server.counters("computed_tokens") <= 2 * 300 + 31 * (300 % 16) + 32 * 4

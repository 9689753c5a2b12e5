"""Answers with drafts by another model are the answers without, on one server, whatever the fields, on both back ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.equality.test_drafts import PROMPT, ask, with_rules
from blockwright.tests.equality.test_tier_drafts import BRIEF, WIDE, answers

LAYERS = 4
LIKE, WRONG = "like", "wrong"  # a draft model that mostly draws what its target does, and one that hardly ever does


def target_of(folder: Path, dtype: str) -> Path:
    """A model whose top layer changes little."""
    base = make_checkpoint(folder / "base", "llama", dtype=dtype, num_hidden_layers=LAYERS)
    tensors = load_file(base / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.{LAYERS - 1}.{name}.weight"] *= 0.2
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    return with_rules(base, folder / "plain")


def like(target: Path, folder: Path, dtype: str) -> Path:
    """A model of the first layers of ``target``, each tensor a little changed, so that nothing is shared."""
    draft = make_checkpoint(folder, "llama", dtype=dtype, num_hidden_layers=LAYERS - 1)
    given, generator = load_file(target / "model.safetensors"), torch.Generator().manual_seed(1)
    tensors = {
        name: (given[name].float() * (1 + 1e-2 * torch.randn(given[name].shape, generator=generator))).to(own.dtype)
        for name, own in load_file(draft / "model.safetensors").items()
    }
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    return draft


def models(folder: Path, dtype: str = "float32") -> dict[str, Path]:
    target = target_of(folder, dtype)
    wide = {"hidden_size": 128, "intermediate_size": 96}  # another width than the target's
    return {
        "m": target,
        LIKE: like(target, folder / LIKE, dtype),
        WRONG: make_checkpoint(folder / WRONG, "llama", 5, dtype, num_hidden_layers=1, **wide),
        "ruled": target,
        "lora": make_adapter(target, folder / "lora"),
    }


@claim("Drafts by another model change no token, whatever the fields of a request are", of="drafts", headline=True)
@pytest.mark.parametrize(
    ("backend", "dtype", "wanted"),
    [
        ("native", "float32", WIDE),
        ("native", "bfloat16", BRIEF),
        ("torch", "bfloat16", BRIEF),
        pytest.param("native", "bfloat16", WIDE, marks=pytest.mark.nightly),
        pytest.param("torch", "bfloat16", WIDE, marks=pytest.mark.nightly),
        pytest.param("torch", "float32", WIDE, marks=pytest.mark.nightly),
    ],
    ids=[
        "native-float32",
        "native-bfloat16",
        "torch-bfloat16",
        "native-bfloat16-all",
        "torch-bfloat16-all",
        "torch-float32-all",
    ],
)
async def test_answers_with_drafts_by_a_model_are_those_without(
    tmp_path: Path, backend: str, dtype: str, wanted: list[dict[str, Any]]
) -> None:
    wanted = [fields for fields in wanted if fields.get("model") != "virtual"]
    more: dict[str, Any] = {"backend": backend, "dtype": dtype, "chunk_size": 16, "bases": {"lora": "m"}}
    rates = []
    async with serve(models(tmp_path, dtype), **more) as server:
        calm = [await ask(server, fields) for fields in wanted]
        assert await server.counters("drafted_tokens") == 0
        for model, tokens in ((LIKE, 4), (LIKE, 0), (LIKE, 16), (WRONG, 3)):
            before = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
            got = await answers(server, wanted, draft=model, draft_tokens=tokens)
            assert got == calm, (model, tokens)
            after = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
            rates.append((after[1] - before[1]) / max(1.0, after[0] - before[0]))
    assert rates[0] > 0.4, rates
    assert rates[3] < 0.2, rates


@claim("A request reports the model that drafted for it and the accepted drafts, or why there are none", of="drafts")
async def test_the_drafts_of_a_model_are_reported(tmp_path: Path) -> None:
    unlike = make_checkpoint(tmp_path / "unlike", "llama", num_hidden_layers=1, vocab_size=320)
    served = {**models(tmp_path), "unlike": unlike}
    async with serve(served, drafts={"m": LIKE}, draft_tokens=3, bases={"lora": "m"}) as server:

        async def drafted(**fields: Any) -> tuple[dict[str, Any], list[int]]:
            body = {"model": "m", "prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True, **fields}
            async with server.session.post(f"{server.url}/v1/completions", json=body | {"return_token_ids": True}) as answer:
                content = await answer.json()
                assert answer.status == 200, content
            async with server.session.get(f"{server.url}/v1/requests/{content['id']}") as answer:
                return (await answer.json())["drafts"], content["choices"][0]["token_ids"]

        plain, want = await drafted(draft="off")
        assert plain["sources"] == {}
        drafts, tokens = await drafted()
        counts = drafts["sources"]["model"]
        assert tokens == want
        assert (drafts["model"], drafts["reason"]) == (LIKE, "")
        assert counts["drafted"] > 20
        assert counts["accepted"] > 10
        async with server.session.get(f"{server.url}/metrics") as answer:
            seen = f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m",source="model"}} {counts["accepted"]}.0'
            assert seen in await answer.text()
        for name, says in (
            ("m", "but m would draft for itself; give a smaller model of the same vocabulary"),
            ("lora", "but lora and m have the same parameters, so that drafts would take as long as the answer"),
            ("unlike", "but unlike has a vocabulary of 320 tokens and m one of 384; give a model of the same vocabulary"),
            ("absent", "which is neither a source of drafts nor a model that is served"),
        ):
            body = {"model": "m", "prompt": [5], "draft": name}
            async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (400, "draft")
            assert error["message"].startswith(f"draft is {name!r}, {says}"), error


async def test_by_the_rejection_rule_sampled_tokens_are_others_and_repeat(tmp_path: Path) -> None:
    async with serve(models(tmp_path), draft_rule="rejection", bases={"lora": "m"}) as server:
        drafts = {"draft": LIKE, "draft_tokens": 4}
        assert await ask(server, drafts) == await ask(server, {})
        warm = {"temperature": 1.0, "seed": 3}
        sampled = await ask(server, {**warm, **drafts})
        assert sampled == await ask(server, {**warm, **drafts})
        assert sampled != await ask(server, warm)
        assert await server.counters("accepted_tokens") > 20

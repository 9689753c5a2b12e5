"""Answers with drafts by a lower tier are the answers without, on one server, whatever the fields, on both back ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint, make_family
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.equality.test_drafts import FIELDS, PROMPT, ask, with_rules
from blockwright.tests.equality.test_request_fields import SETS

LAYERS = 4
LIKE, WRONG = 3, 1  # the layers of a tier that mostly draws what the top does, and of one that hardly ever does
WIDE = [fields for fields in FIELDS if "draft" not in fields]
BRIEF = [{}, {"temperature": 0.8, "seed": 11, "logprobs": 2}, {"n": 2, "temperature": 1.1, "seed": 13}, *SETS[:4]]


def family_of(tmp_path: Path, dtype: str = "float32") -> Path:
    """A family whose top layer changes little, so that the exit below it draws mostly the same tokens."""
    base = make_checkpoint(tmp_path / "base", "llama", dtype=dtype, num_hidden_layers=LAYERS)
    tensors = load_file(base / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.{LAYERS - 1}.{name}.weight"] *= 0.2
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    return make_family(with_rules(base, tmp_path / "plain"), tmp_path / "m", {WRONG: "low", LIKE: "shared"})


async def answers(server: Served, wanted: list[dict[str, Any]], **more: Any) -> list[Any]:
    return await asyncio.gather(*(ask(server, {**fields, **more}) for fields in wanted))


@claim("Drafts by a lower tier change no token, whatever the fields of a request are", of="drafts", headline=True)
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
async def test_answers_with_drafts_by_a_tier_are_those_without(
    tmp_path: Path, backend: str, dtype: str, wanted: list[dict[str, Any]]
) -> None:
    family = family_of(tmp_path, dtype)
    folders = {
        "m": family,
        "ruled": family,
        "lora": make_adapter(family, tmp_path / "lora"),
        "virtual": make_adapter(family, tmp_path / "virtual", 0, 0.6, "PromptTuningConfig", num_virtual_tokens=7),
    }
    more: dict[str, Any] = {"backend": backend, "dtype": dtype, "chunk_size": 16, "bases": {"lora": "m", "virtual": "m"}}
    rates = []
    async with serve(folders, **more) as server:
        calm = [await ask(server, fields) for fields in wanted]
        assert await server.counters("drafted_tokens") == 0
        for layers, tokens in ((LIKE, 4), (LIKE, 0), (LIKE, 16), (WRONG, 3)):
            before = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
            got = await answers(server, wanted, draft=f"tier:{layers}", draft_tokens=tokens)
            assert got == calm, (layers, tokens)
            after = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
            rates.append((after[1] - before[1]) / max(1.0, after[0] - before[0]))
        assert await answers(server, wanted, draft="auto", draft_tokens=2) == calm
    assert rates[0] > 0.5, rates
    assert rates[3] < 0.2, rates


@claim("A request reports the drafts of each source and the accepted ones, and so do the metrics", of="drafts")
async def test_the_drafts_of_a_tier_are_reported(tmp_path: Path) -> None:
    async with serve({"m": family_of(tmp_path)}, drafts={"m": f"tier:{LIKE}"}, draft_tokens=3) as server:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
            name = (await answer.json())["id"]
        async with server.session.get(f"{server.url}/v1/requests/{name}") as answer:
            drafts = (await answer.json())["drafts"]
        async with server.session.get(f"{server.url}/metrics") as answer:
            metrics = await answer.text()
    counts = drafts["sources"]["tier"]
    assert drafts["tiers"] == [f"m:{LIKE}"]
    assert (drafts["reason"], counts["drafted"] > 20, counts["accepted"] > 10) == ("", True, True)
    message = f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m",source="tier"}} {counts["accepted"]}.0'
    assert message in metrics


async def test_by_the_rejection_rule_sampled_tokens_are_others_and_repeat(tmp_path: Path) -> None:
    async with serve({"m": family_of(tmp_path)}, draft_rule="rejection") as server:
        drafts = {"draft": f"tier:{LIKE}", "draft_tokens": 4}
        assert await ask(server, drafts) == await ask(server, {})
        warm = {"temperature": 1.0, "seed": 3}
        sampled = await ask(server, {**warm, **drafts})
        assert sampled == await ask(server, {**warm, **drafts})
        assert sampled != await ask(server, warm)
        assert await server.counters("accepted_tokens") > 20

"""Answers with drafts, which are the answers without: every field of requests, adapters, rules, on one server."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.port import Generation
from blockwright.policies.drafts.options import DraftOptions
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.equality.test_request_fields import SETS
from blockwright.tests.gpu.reference import greedy, prompt_of

NEW, PROMPT = 40, list(prompt_of(21))
PAUSED = {"min_tokens": 12, "stop_token_ids": list(range(3, 300)), "temperature": 0.9, "seed": 14}
FIELDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 5},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 1.3, "seed": 12, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "logprobs": 3},
    {"n": 3, "temperature": 1.0, "seed": 13, "logprobs": 1},
    {"echo": True, "logprobs": 2, "prompt_logprobs": 1},
    {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.7, "logprobs": 1},
    {"ignore_eos": False, "temperature": 1.5, "seed": 15},
    {**PAUSED, "include_stop_str_in_output": True},
    PAUSED,
    {"draft": "prompt"},
    *SETS,
    *({"model": name, **fields} for name in ("lora", "virtual", "ruled") for fields in (
        {"logprobs": 2}, {"temperature": 0.9, "seed": 16, "presence_penalty": 0.5}, {"n": 2, "temperature": 1.1, "seed": 17},
    )),
]  # fmt: skip


class Guesses:
    """Drafts in the place of the ones that requests ask for: predictions made from the answers without drafts.

    ``change`` gives the predicted token for the place and the token of the answer.
    """

    def __init__(self) -> None:
        self.asked: list[Generation] = []
        self.answers: dict[str, list[int]] = {}
        self.tokens, self.change = -1, lambda place, token: token

    def key(self, generation: Generation) -> str:
        return repr((generation.application, generation.prompt, generation.sampling, generation.stop_tokens))

    def give(self, generation: Generation) -> Generation:
        """Return the generation with its drafts."""
        self.asked.append(generation)
        if self.tokens < 0:
            return replace(generation, drafts=None)
        text = [self.change(place, token) for place, token in enumerate(self.answers[self.key(generation)])]
        prompt = generation.drafts is not None and generation.drafts.prompt
        return replace(generation, drafts=DraftOptions(prompt, self.tokens, [] if prompt else text))


def with_rules(base: Path, folder: Path) -> Path:
    """Copy a checkpoint, with rules over phrases of its usual answer, any of which a draft's border may cut."""
    usual = list(greedy(base, tuple(PROMPT), NEW))
    phrases = [usual[at : at + 2] for at in (2, 5, 9)]
    rules = {
        "bad_words_ids": [usual[at : at + 3] for at in (3, 7, 12)], "no_repeat_ngram_size": 2,
        "sequence_bias": [[phrase, -4.5] for phrase in phrases],
    }  # fmt: skip
    shutil.copytree(base, folder)
    (folder / "generation_config.json").write_text(json.dumps(rules))
    return folder


async def ask(server: Served, fields: dict[str, Any]) -> Any:
    """Return all choices of an answer."""
    body = {
        "model": "m", "prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "seed": 1, "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }  # fmt: skip
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
    return content["choices"]


@claim("Drafts change no token, whatever the fields of a request are", of="drafts")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("native", "float32"),
        pytest.param("torch", "bfloat16", marks=pytest.mark.nightly),
        pytest.param("torch", "float32", marks=pytest.mark.nightly),
    ],
    ids=["native", "torch-bfloat16", "torch-float32"],
)
async def test_answers_with_drafts_are_those_without(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str
) -> None:
    base, guesses = checkpoint("llama"), Guesses()
    generate = Gateway.generate
    monkeypatch.setattr(Gateway, "generate", lambda gateway, generation: generate(gateway, guesses.give(generation)))
    folders = {
        "m": base,
        "lora": make_adapter(base, tmp_path / "lora"),
        "virtual": make_adapter(base, tmp_path / "virtual", 0, 0.6, "PromptTuningConfig", num_virtual_tokens=7),
        "ruled": with_rules(base, tmp_path / "ruled"),
    }
    changes: list[tuple[int, Callable[[int, int], int]]] = [
        (4, lambda place, token: token),
        (3, lambda place, token: token if place % 5 else token ^ 1),
        (0, lambda place, token: token if place % 7 else token ^ 1),
        (16, lambda place, token: token ^ 1),
    ]
    async with serve(folders, backend=backend, dtype=dtype, chunk_size=16, bases={"lora": "m", "virtual": "m"}) as server:
        calm = []
        for fields in FIELDS:
            calm.append(await ask(server, fields))
            for generation, choice in zip(guesses.asked, calm[-1], strict=True):
                guesses.answers[guesses.key(generation)] = choice["token_ids"]
            guesses.asked.clear()
        assert await server.counters("drafted_tokens") == 0
        seen = [(0.0, 0.0)]
        for guesses.tokens, guesses.change in changes:
            drafted = await asyncio.gather(*(ask(server, fields) for fields in FIELDS))
            for fields, now, before in zip(FIELDS, drafted, calm, strict=True):
                assert now == before, (fields, guesses.tokens)
            seen.append((await server.counters("drafted_tokens"), await server.counters("accepted_tokens")))
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(seen)]
    assert rates[0] > 0.8, rates
    assert 0.3 < rates[1] < 0.9, rates
    assert rates[3] < 0.1, rates

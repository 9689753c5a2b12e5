"""Twenty tenants with adapters of every form over one base, in the same sweeps: each answers as with its adapter alone, in
peft or, for bottlenecks, in torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.adapters import base_model, bottleneck_model, confirm, make_adapter, make_bottleneck, peft_model
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve, tight
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import some

Checkpoints = Callable[..., Path]
NEW = 24
SHAPES: list[dict[str, Any]] = [
    {},
    {"r": 16, "use_rslora": True},
    {"r": 3, "target_modules": ["q_proj", "v_proj"]},
    {"target_modules": ["o_proj", "lm_head"]},
    {
        "target_modules": ["q_proj", "up_proj"],
        "layers_to_transform": [2],
        "r": 8,
    },  # shares the KV of the layers below with the base
    {"kind": "PromptTuningConfig", "num_virtual_tokens": 7, "spread": 0.6},
    {"kind": "PrefixTuningConfig", "num_virtual_tokens": 20, "spread": 0.6},
    {"mh_adapter": True, "reduction_factor": 4, "non_linearity": "swish", "original_ln_before": False},
]
TENANTS = 20


class Tenants:
    """The base as ``base``, its adapters as ``t0`` to ``t19``, and what each should answer."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.base = base
        shapes = ((f"t{i}", SHAPES[i % len(SHAPES)]) for i in range(TENANTS))
        made = {
            name: (make_bottleneck if "mh_adapter" in shape else make_adapter)(base, folder / name, seed=i, **shape)
            for i, (name, shape) in enumerate(shapes)
        }
        self.applications = {"base": base} | made
        self._models: dict[str, Any] = {}
        self._right: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()

    def model(self, name: str) -> Any:
        if name not in self._models:
            folder = self.applications[name]
            make = bottleneck_model if (folder / "adapter.safetensors").is_file() else peft_model
            self._models[name] = base_model(self.base) if name == "base" else make(self.base, folder)
        return self._models[name]

    def check(self, name: str, prompt: tuple[int, ...], choice: dict[str, Any]) -> None:
        """AssertionError unless this is what the adapter alone would answer."""
        answer = (name, prompt, tuple(choice["token_ids"]))
        assert len(answer[2]) == NEW
        if answer not in self._right:
            confirm(self.model(name), prompt, answer[2])
            self._right.add(answer)


@pytest.fixture(scope="module")
def tenants(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(checkpoint("llama"), tmp_path_factory.mktemp("tenants"))


async def ask_all(server: Served, tenants: Tenants, lengths: tuple[int, ...]) -> None:
    """Every tenant asks with prompts of these lengths, which are the same for all, at once."""
    jobs = [(name, tuple(prompt_of(n, seed=n))) for n in lengths for name in tenants.applications]
    answers = await asyncio.gather(*(server.complete(prompt, NEW, model=name) for name, prompt in jobs))
    for (name, prompt), choice in zip(jobs, answers, strict=True):
        tenants.check(name, prompt, choice)


@claim(
    "LoRA adapters answer as peft does, alone and beside twenty other tenants in one batch", of="fine-tunes", headline=True
)
@pytest.mark.parametrize("backend", some(["native", "torch"], "native"))
async def test_all_at_once_and_again_from_the_cache(tenants: Tenants, backend: str) -> None:
    async with serve(tenants.applications, backend=backend) as server:
        await ask_all(server, tenants, (40, 9))
        prompt = tuple(prompt_of(50, seed=50))
        before = (await server.cluster())["kv_pages_shared"]
        for name in ("base", "t4"):
            assert (await server.cluster())["kv_pages_shared"] == before
            tenants.check(name, prompt, await server.complete(prompt, NEW, model=name))
        assert (await server.cluster())["kv_pages_shared"] > before, "of the layers below the first delta"
        before = await server.counters("cached_tokens")
        await ask_all(server, tenants, (40,))
        assert await server.counters("cached_tokens") >= before + 32 * (TENANTS + 1), "two pages of sixteen for each"


@claim("Tenants answer the same over a pipeline, after preemption and after the death of a worker", of="fine-tunes")
@pytest.mark.nightly
async def test_over_a_pipeline(tenants: Tenants) -> None:
    async with serve(tenants.applications, workers=2, pipeline=2) as server:
        await ask_all(server, tenants, (40, 9))


@claim("Tenants answer the same over a pipeline, after preemption and after the death of a worker", of="fine-tunes")
async def test_a_worker_is_killed(tenants: Tenants) -> None:
    """The second of a pipeline, while all tenants are being answered."""
    async with serve(tenants.applications, workers=2, pipeline=2, heartbeat=0.02, silence=1.0) as server:
        asked = asyncio.create_task(ask_all(server, tenants, (40,)))
        parts = server.running.port.book.parts
        await server.running.port.until(
            lambda: sum(2 < record.progress.emitted < 20 for record in parts.active.values()) > 5
        )
        server.running.launcher.kill(server.running.cluster.members()["w1"].id)
        await asked
        attempts = [view.attempt for view in parts.past.values()]
    assert max(attempts) > 1, "nothing was running when the worker died"


async def test_virtual_tokens_are_nobodys_business(tenants: Tenants) -> None:
    """What clients see of a tenant with prompt or prefix tuning counts and names only their own tokens."""
    prompt = tuple(prompt_of(30, seed=1))
    async with serve({name: tenants.applications[name] for name in ("base", "t5", "t6")}) as server:
        async with server.session.get(f"{server.url}/v1/models") as answer:
            lengths = {model["id"]: model["max_model_len"] for model in (await answer.json())["data"]}
        assert lengths == {"base": 512, "t5": 505, "t6": 492}
        for name in ("t5", "t6"):
            for cached in (0, 16):
                body = {"model": name, "prompt": list(prompt), "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
                async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
                    usage = (await answer.json())["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, NEW)
                assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == (cached > 0)
                assert usage["prompt_tokens_details"]["cached_tokens"] <= 29
            choice = await server.complete(prompt, 1, model=name, echo=True, logprobs=1)
            outcome, wanted = choice["logprobs"]["token_logprobs"], scores(tenants.model(name), prompt)
            assert outcome[0] is None
            assert len(outcome) == 31
            assert max(abs(a - b) for a, b in zip(outcome[1:30], wanted, strict=True)) < 1e-3
            short = await server.complete(prompt, NEW, model=name, truncate_prompt_tokens=9)
            tenants.check(name, prompt[-9:], short)


def scores(model: Any, prompt: tuple[int, ...]) -> list[float]:
    """Log-probability of each token of a prompt but the first."""
    import torch

    tokens = torch.tensor([prompt])
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, -len(prompt) :]
    found: list[float] = logits.log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0].tolist()
    return found


@claim("Tenants answer the same over a pipeline, after preemption and after the death of a worker", of="fine-tunes")
async def test_preempted(tenants: Tenants) -> None:
    backend, base = open_backend("native", "float32", 1), Checkpoint.open(tenants.base)
    variants = [
        open_adapter(folder, base).specs(16, "float32") for name, folder in tenants.applications.items() if name != "base"
    ]
    deltas = {part.id: part.nbytes for specs in variants for s in specs if s.delta is not None for part in backend.parts(s)}
    memory = tight(tenants.base, 16, 3 * 120) + sum(-(-nbytes // 64) * 64 for nbytes in deltas.values())
    async with serve(tenants.applications, memory=memory) as server:
        await ask_all(server, tenants, (100, 90))
        assert await server.counters("preemptions") > 0

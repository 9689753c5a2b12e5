"""Benchmark of variants on a whole server: the tokens a second of a model whose own blocks are on one worker only.

    python benchmarks/adaptive_live.py [--quick] [--json PATH]

Two models of one zoo differ in the feed-forward blocks of the upper half of their layers. Each worker has memory for
one of them, so the model that all requests ask for has its own blocks on one worker. Three servers take turns: ``off``
without variants; ``equal``, where a variant serves on the other worker; and ``both``, whose memory holds both models on
both workers: no choice of chains can do better. Sweeps are held to a time by their rows (setting ``pace``), as on slow
devices, so that a busy machine changes little. ``gain``: the part of the gain of ``both`` over ``off`` that ``equal``
reaches, by the medians of all turns. The blocks are stored as equivalent without measuring them, since speed does not
depend on that.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import harness
import torch
from harness import OURS, Bar, Options, Report
from models import SIZES, make_model
from safetensors.torch import load_file, save_file
from server import Served, ServerError, served

from blockwright.policies.adaptive.equivalence import EquivalenceLimits
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.records import StoredEquivalences, StoredPair, store_equivalences
from blockwright.zoo.zoo import Zoo

BUSY, OTHER = "busy", "other"
SHARED = 0.5  # part of the layers whose feed-forward blocks are the same in both models
LENGTH = 256  # tokens of a sequence
LEAST_GAIN = 1.05  # of ``both`` over ``off``; below it there is no bar
SUBJECTS = ("off", "equal", "both")
CASE = "one-busy-model"
PACE = {"base": 0.002, "token": 0.008}  # seconds of a sweep, and of each of its rows
BARS = [Bar(CASE, "gain", at_least=0.85)]


@dataclass(frozen=True, slots=True)
class Plan:
    """The load: requests at once, tokens of an answer, and turns of each server."""

    requests: int = 16
    tokens: int = 64
    turns: int = 5

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(requests=4, tokens=16, turns=1) if quick else cls()


def zoo_in(folder: Path, model: str) -> Path:
    """Make a zoo with the two models, whose blocks it has as equivalent. Return its folder."""
    base = make_model(model, "f32", folder / BUSY)
    copy, root = folder / OTHER, folder / "zoo"
    shutil.copytree(base, copy)
    layers = range(int(SHARED * SIZES[model].layers), SIZES[model].layers)
    tensors, source = load_file(base / "model.safetensors"), torch.Generator().manual_seed(3)
    for name in [name for name in tensors if any(f"layers.{layer}.mlp." in name for layer in layers)]:
        tensor = tensors[name].float()
        noise = 0.01 * tensor.std() * torch.randn(tensor.shape, generator=source)
        tensors[name] = (tensor + noise).to(tensors[name].dtype)
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    for name in (BUSY, OTHER):
        add(root, str(folder / name), name)
    store(root, [2 * layer + 2 for layer in layers])
    return root


def store(root: Path, places: Sequence[int]) -> None:
    """Store the components at these places of both chains as equivalent."""
    one, other = (Zoo(root).chain(name).components for name in (BUSY, OTHER))
    pairs = tuple(
        StoredPair(one[at : at + 1], other[at : at + 1], at, at, 1.0, 1.0, swappable=True, counts=True, kl=0.0)
        for at in places
    )
    found = StoredEquivalences(
        components=one,
        others=other,
        probe="0" * 32,
        tokens=1,
        prompts=0,
        right=0,
        limits=EquivalenceLimits(),
        similarities=tuple((1.0,) * (len(other) - 1) for _ in one[1:]),
        pairs=pairs,
    )
    store_equivalences(root, [found])


def memory_of(root: Path) -> dict[str, int]:
    """Return the bytes of a worker for each server: room for one model and its sequences, or for both."""
    zoo = Zoo(root)
    one, both = zoo.tensors(zoo.chain(BUSY)), dict(zoo.tensors(zoo.chain(BUSY)))
    both |= zoo.tensors(zoo.chain(OTHER))
    single, whole = (sum(tensor.nbytes for tensor in tensors.values()) for tensors in (one, both))
    return {"off": whole - 1, "equal": whole - 1, "both": whole + (whole - single) + (64 << 20)}


async def turn(server: Served, plan: Plan, draw: random.Random) -> float:
    """Send all requests at once; return tokens a second."""
    prompts = [[draw.randrange(3, 500) for _ in range(16)] for _ in range(plan.requests)]
    began = time.monotonic()
    await asyncio.gather(*(server.complete(prompt, plan.tokens) for prompt in prompts))
    return plan.requests * plan.tokens / (time.monotonic() - began)


async def measure(report: Report, plan: Plan, folder: Path, model: str) -> None:
    """Let the three servers take turns."""
    root, draw = zoo_in(folder, model), random.Random(5)
    memory, other = memory_of(root), f"--app={OTHER}={root}/chains/{OTHER}"
    (folder / "pace.json").write_text(json.dumps(PACE))
    async with AsyncExitStack() as stack:
        servers = {}
        for name in SUBJECTS:
            asked = [f"max_model_len={LENGTH}", "threads=1", f"memory={memory[name]}", f"pace={folder / 'pace.json'}"]
            asked += [f"adaptive.{BUSY}=equal"] if name == "equal" else []
            words = [word for setting in asked for word in ("--set", setting)]
            servers[name] = await stack.enter_async_context(served(root / "chains" / BUSY, other, "--workers", "2", *words))
        for server in servers.values():
            server.model = BUSY
            await turn(server, Plan(requests=4, tokens=8), draw)
        for _ in range(plan.turns):
            rates = {name: await turn(server, plan, draw) for name, server in servers.items()}
            for name, rate in rates.items():
                report.add(f"{CASE}/{name}", OURS, {"tokens_per_s": rate})
        shown = await servers["equal"].get("/admin/cluster")
        if f"{BUSY}~1" not in {route["application"] for route in shown["routes"]}:
            raise ServerError(f"no variant of {BUSY} has a route")
    off, equal, both = (cast(float, report.median(f"{CASE}/{name}", "tokens_per_s", OURS)) for name in SUBJECTS)
    if both > LEAST_GAIN * off:
        report.add(CASE, OURS, {"gain": (equal - off) / (both - off)})


@harness.claim("A variant gives most of the tokens a second that its model's own blocks would give there", of="adaptive")
def main(options: Options, model: str = "stages") -> None:
    plan = Plan.chosen(options.quick)
    report = Report("adaptive_live", {"model": model, "requests": plan.requests, "tokens": plan.tokens, "pace": PACE})
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(measure(report, plan, Path(scratch), model))
    harness.finish(report, options, [bar for bar in BARS if report.median(bar.case, bar.metric, OURS) is not None])


if __name__ == "__main__":
    main(harness.parse(__doc__))

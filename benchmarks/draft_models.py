"""Benchmark of drafts by another model and by a lower tier: the speed-up relative to the ideal.

    python benchmarks/draft_models.py [--quick] [--json PATH]

The target is a random model whose upper layers write ``SCALES`` times less into the hidden states, with an exit after
``LAYERS`` layers (its head is the top's own). The draft model has copies of these layers, each number a little changed, so
that the two share nothing. The smaller the scale, the more drafts stand. Requests without drafts (``off``), with 1, 2, 4 and
8 drafts a round (``g1`` to ``g8``) and with as many as the policy takes (``policy``) take turns on one server; answers must
be the same tokens.

All times are processor times of the worker's process, which computes with one thread: other work on the machine delays an
answer, and hardly changes what it costs. ``out_tok_per_s`` is tokens for each second of it. ``of_ideal`` is the measured
speed-up divided by the ideal, where E is the number of tokens of a round as recorded; the median times of the kernels are
measured in the same round: T(n) of the target for n positions of each request, D(1) of the draft model, S_1 and S_2 of the
layers below and above the exit, H of the head:

- ``model``: E T(1) / (g D(1) + T(g + 1));
- ``tier``: E T(1) / ((g + 1) S_1(1) + g H(1) + S_2(g + 1) + H(g + 1)).

``of_best``: the policy's tokens a second divided by the ones of the best fixed number, none included.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import torch
from drafts import BEST, FIXED, IDEAL, OFF, POLICY, turn
from harness import OURS, Bar, Options, Report
from models import CONFIG_DTYPES, SIZES, make_model, prompts
from safetensors.torch import load_file, save_file
from server import Served, ServerError, served
from tier_sweeps import THREADS, Segments, usual

LAYERS = 2  # of the draft model, and below the exit
SCALES = (0.3, 0.1, 0.03)
CHANGED = 1e-3  # of each number of the draft model, relative
DRAFT = "small"
MODEL, TIER = "model", "tier"
PROMPT, REPEATS = 8, 9


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    sizes: tuple[str, ...] = ("W", "M")
    dtype: str = "bf16"
    rounds: int = 2
    tokens: int = 48
    requests: tuple[int, ...] = (1, 2)
    scales: tuple[float, ...] = SCALES

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("W",), rounds=1, tokens=24, requests=(1,), scales=(0.1,)) if quick else cls()

    def cases(self) -> list[str]:
        return [
            case(size, self.dtype, requests, source, scale)
            for size in self.sizes
            for requests in self.requests
            for source in (MODEL, TIER)
            for scale in self.scales
        ]


def case(size: str, dtype: str, requests: int, source: str, scale: float) -> str:
    return f"{size}/{dtype}/c{requests}/{source}{scale:g}"


def bars(plan: Plan) -> list[Bar]:
    found = [Bar(f"{name}/g{g}", "of_ideal", at_least=IDEAL) for name in plan.cases() for g in FIXED]
    return found + [Bar(f"{name}/{POLICY}", "of_best", at_least=BEST) for name in plan.cases()]


def make_pair(size: str, dtype: str, scale: float, folder: Path) -> tuple[Path, Path]:
    """Write a target and its draft model; return their folders."""
    target, draft = make_model(size, dtype, folder / "target"), make_model(_lower(size), dtype, folder / "draft")
    tensors, generator = load_file(target / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in tensors:
        parts = name.split(".")
        if len(parts) > 4 and int(parts[2]) >= LAYERS and parts[4] in ("o_proj", "down_proj"):
            tensors[name] = tensors[name] * scale
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    copies = {}
    for name in load_file(draft / "model.safetensors"):
        noise = torch.randn(tensors[name].shape, generator=generator)
        copies[name] = (tensors[name].float() * (1 + CHANGED * noise)).to(tensors[name].dtype)
    save_file(copies, draft / "model.safetensors", {"format": "pt"})
    return target, draft


def _lower(size: str) -> str:
    """Return the name of a size of as many layers as the draft model has."""
    name = f"{size} of {LAYERS} layers"
    SIZES[name] = replace(SIZES[size], layers=LAYERS)
    return name


class Costs:
    """The time of a round of each source, and of a token without drafts, from the kernels of the target.

    A draft model has the shapes of the layers below the exit, and a head of its own.
    """

    def __init__(self, kernels: Segments, requests: int) -> None:
        wanted = {1, *(1 + g for g in FIXED)}
        self._lower = {n: usual(kernels.lower(requests, n), REPEATS) for n in wanted}
        self._upper = {n: usual(kernels.upper(requests, n), REPEATS) for n in wanted}
        self._head = {n: usual(kernels.head(requests * n), REPEATS) for n in wanted}

    def whole(self, positions: int) -> float:
        """Return T(n)."""
        return self._lower[positions] + self._upper[positions] + self._head[positions]

    def speedup(self, source: str, g: int, of_round: float) -> float:
        """Return the ideal speed-up of rounds with that many tokens."""
        drawn = self._lower[1] + self._head[1]
        by_model = g * drawn + self.whole(g + 1)
        by_tier = g * drawn + self._lower[1] + self._upper[g + 1] + self._head[g + 1]
        return of_round * self.whole(1) / (by_model if source == MODEL else by_tier)


async def measured(server: Served, asked: Sequence[Sequence[int]], tokens: int, fields: dict[str, Any]) -> tuple[float, Any]:
    """Ask all at a time; return the tokens for each second of processor time, and what ``drafts.turn`` found."""
    began = server.worker_cpu_seconds()
    done = await turn(server, asked, tokens, [fields] * len(asked))
    return sum(map(len, done.answers)) / (server.worker_cpu_seconds() - began), done


async def compared(report: Report, plan: Plan, server: Served, kernels: Segments, size: str, scale: float, n: int) -> None:
    """Measure both sources with ``n`` requests at a time: all subjects in turns."""
    asked = prompts(size, n, PROMPT, seed=n)
    sources = {MODEL: DRAFT, TIER: f"tier:{LAYERS}"}
    rates = dict[tuple[str, str], list[float]]()
    plain = await turn(server, asked, plan.tokens, [{"draft": OFF}] * n)
    for number in range(-1, plan.rounds):  # the first is not counted
        costs = Costs(kernels, n)
        off, _ = await measured(server, asked, plan.tokens, {"draft": OFF})
        for source, draft in sources.items():
            name = case(size, plan.dtype, n, source, scale)
            for subject in (OFF, *(f"g{g}" for g in FIXED), POLICY):
                g = int(subject[1:]) if subject.startswith("g") else 0
                rate, of_round = off, 1.0
                if subject != OFF:
                    rate, done = await measured(server, asked, plan.tokens, {"draft": draft, "draft_tokens": g})
                    of_round = done.of_round
                    if done.answers != plain.answers:
                        raise ServerError(f"{name}: other tokens with {subject}")
                if number < 0:
                    continue
                rates.setdefault((name, subject), []).append(rate)
                report.add(f"{name}/{subject}", OURS, {"out_tok_per_s": rate, "tokens_per_round": of_round})
                if g:
                    ideal = costs.speedup(source, g, of_round)
                    report.add(f"{name}/{subject}", OURS, {"of_ideal": rate / off / ideal, "ideal": ideal})
    for source in sources:
        name = case(size, plan.dtype, n, source, scale)
        middle = {subject: statistics.median(rates[name, subject]) for subject in (OFF, *(f"g{g}" for g in FIXED), POLICY)}
        policy = middle.pop(POLICY)
        report.add(f"{name}/{POLICY}", OURS, {"of_best": policy / max(middle.values()), "speedup": policy / middle[OFF]})
        print(name, "done", flush=True)


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    for size in plan.sizes:
        kernels = Segments(size, plan.dtype, THREADS, LAYERS)
        for scale in plan.scales:
            target, draft = make_pair(size, plan.dtype, scale, folder / f"{size} {scale:g}")
            arguments = ["--app", f"{DRAFT}={draft}", "--workers", "1", "--dtype", CONFIG_DTYPES[plan.dtype]]
            settings = (f"exits.{target.name}={LAYERS}", f"threads={THREADS}", "memory=2500MiB")
            arguments += [word for setting in settings for word in ("--set", setting)]
            async with served(target, *arguments) as server:
                for requests in plan.requests:
                    await compared(report, plan, server, kernels, size, scale, requests)


@harness.claim("Drafts by another model and by a lower tier save nearly what the kernels allow", of="drafts")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"layers": LAYERS, "prompt": PROMPT, "answer": plan.tokens, "rounds": plan.rounds, "threads": THREADS}
    report = Report("draft_models", {**settings, "time": "processor"})
    with tempfile.TemporaryDirectory(prefix="blockwright-drafts-") as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))

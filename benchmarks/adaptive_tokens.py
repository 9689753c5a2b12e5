"""Drafts across a slow block by a chain with its surrogate: the speed-up relative to the ideal.

    python benchmarks/adaptive_tokens.py [--quick] [--json PATH]

A random model whose slow block, all layers but the first and the last, adds ``SCALES`` times what it would: the smaller the
scale, the more drafts of the chain with its surrogate stand. Requests without drafts, and with 1, 2 and 4 drafts a round
(``g1`` to ``g4``), take turns on one server, one at a time; answers must be the same tokens.

All times are processor times of the worker's process, which computes with one thread. ``of_ideal`` is the measured speed-up
divided by the ideal, E P / (P + g D(1) + T(g + 1) - T(1)): E is the number of tokens of a round as recorded, P the measured
time of a token without drafts, T(n) the time of the model's kernels for n positions, and D(1) that of the drafting chain:
T(1) less the part of its slow block that the surrogate saves at one row, as measured in turns when it was made. A round thus
costs the kernels of its passages, and what the server itself takes for one sweep of one row, P - T(1). It cannot cost less,
since a round is a sweep that plans more rows and reports more tokens. ``saved``: the surrogate's part of T(1). ``own``: the
server's part of P.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import harness
from draft_models import measured
from drafts import IDEAL, OFF
from harness import OURS, Bar, Options, Report
from models import CONFIG_DTYPES, SIZES, make_model, prompts
from safetensors.torch import load_file, save_file
from server import Served, ServerError, served
from tier_sweeps import THREADS, Segments, usual

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.select import open_backend
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.probe import same_probe
from blockwright.zoo.surrogate.making import SurrogateSite, make_surrogate, open_site
from blockwright.zoo.surrogate.records import StoredSurrogate

NAME = "target"
FIXED = (1, 2, 4)  # drafts of a round
SCALES = (0.1, 0.02)
PROMPT, LENGTH = 8, 48
REPEATS, ROWS = 9, 24


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    size: str = "W"
    dtype: str = "bf16"
    rounds: int = 9
    tokens: int = 48
    scales: tuple[float, ...] = SCALES

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(rounds=2, tokens=24, scales=SCALES[-1:]) if quick else cls()


def bars(plan: Plan) -> list[Bar]:
    return [Bar(f"{case(plan, scale)}/g{g}", "of_ideal", at_least=IDEAL) for scale in plan.scales for g in FIXED]


def case(plan: Plan, scale: float) -> str:
    return f"tokens-{plan.size}/{plan.dtype}/{scale:g}"


def zoo_in(folder: Path, plan: Plan, scale: float) -> tuple[Path, StoredSurrogate]:
    """Make a zoo with the model and a surrogate of its slow block."""
    layers = SIZES[plan.size].layers
    model = make_model(plan.size, plan.dtype, folder / NAME)
    tensors = load_file(model / "model.safetensors")
    for name in tensors:
        parts = name.split(".")
        if len(parts) > 4 and 0 < int(parts[2]) < layers - 1 and parts[4] in ("o_proj", "down_proj"):
            tensors[name] = tensors[name] * scale
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    root = folder / "zoo"
    add(root, str(model), NAME)
    draw = random.Random(3)
    rows = [tuple(draw.randrange(3, SIZES[plan.size].vocabulary) for _ in range(LENGTH)) for _ in range(ROWS)]
    site = SurrogateSite(root, NAME, open_site(root, NAME).checkpoint, 3, 2 * layers - 1)
    backend = cast(HostBackend, open_backend("auto", CONFIG_DTYPES[plan.dtype], THREADS))
    made = make_surrogate(site, same_probe(rows), backend, THREADS, progress=lambda what, done, total: None)
    return root / "chains" / NAME, made


async def compared(report: Report, plan: Plan, server: Served, made: StoredSurrogate, scale: float) -> None:
    """Measure requests without drafts and with each number of drafts, in turns."""
    kernels, asked = Segments(plan.size, plan.dtype, THREADS, 1), prompts(plan.size, 1, PROMPT, seed=1)
    name = case(plan, scale)
    plain = (await measured(server, asked, plan.tokens, {"draft": OFF}))[1].answers
    for number in range(-1, plan.rounds):  # the first is not counted
        layers, whole = passages(kernels)
        saved = layers * (1 - 2 / SIZES[plan.size].layers) * (1 - made.time_ratio)  # all layers but two
        off, _ = await measured(server, asked, plan.tokens, {"draft": OFF})
        for g in FIXED:
            rate, done = await measured(server, asked, plan.tokens, {"draft_tokens": g})
            if done.answers != plain:
                raise ServerError(f"{name}: other tokens with {g} drafts")
            if number < 0:
                continue
            ideal = done.of_round * ideal_share(1 / off, whole[1], g * (whole[1] - saved), whole[g + 1])
            figures = {"speedup": rate / off, "ideal": ideal, "of_ideal": rate / off / ideal, "saved": saved / whole[1]}
            report.add(f"{name}/g{g}", OURS, figures | {"tokens_per_round": done.of_round, "own": 1 - whole[1] * off})


def passages(kernels: Segments) -> tuple[float, dict[int, float]]:
    """Return the processor seconds of the layers for one position, and of the whole model by number of positions.

    All are measured in turns: what else the machine does changes the time of a passage by half within a second.
    """
    parts = {n: (kernels.lower(1, n), kernels.upper(1, n), kernels.head(n)) for n in (1, *(g + 1 for g in FIXED))}
    times = {(n, i): list[float]() for n in parts for i in range(3)}
    for _ in range(REPEATS):
        for n, calls in parts.items():
            for i, call in enumerate(calls):
                times[n, i].append(usual(call, 1))
    found = {key: statistics.median(one) for key, one in times.items()}
    return found[1, 0] + found[1, 1], {n: sum(found[n, i] for i in range(3)) for n in parts}


def ideal_share(plain: float, one: float, drafts: float, verified: float) -> float:
    """Return the time of a token without drafts over the least that a round can take: ``plain`` with other kernels.

    plain: measured seconds of a token without drafts, the server's own part included. one: seconds of the kernels of it.
    drafts, verified: seconds of the kernels of all drafts of a round, and of its last passage.
    """
    return plain / (plain + drafts + verified - min(one, plain))


async def measure(report: Report, plan: Plan, scale: float, folder: Path) -> None:
    model, made = zoo_in(folder, plan, scale)
    settings = (f"speculate.{NAME}=tokens", f"threads={THREADS}", "memory=1500MiB", f"dtype={CONFIG_DTYPES[plan.dtype]}")
    flags = [word for setting in settings for word in ("--set", setting)]
    async with served(model, "--workers", "1", *flags) as server:
        await compared(report, plan, server, made, scale)
    print(f"{case(plan, scale)}: agreement {made.agreement:.2f}", flush=True)


def tokens(report: Report, plan: Plan) -> None:
    """Measure all scales."""
    for scale in plan.scales:
        with tempfile.TemporaryDirectory(prefix="blockwright-tokens-") as folder:
            asyncio.run(measure(report, plan, scale, Path(folder)))


@harness.claim("Drafts across a slow block save most of what the kernels allow", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    report = Report(
        "adaptive_tokens", {"model": plan.size, "answer": plan.tokens, "rounds": plan.rounds, "time": "processor"}
    )
    tokens(report, plan)
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))

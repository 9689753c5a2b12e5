"""Benchmark of steps with several tiers: one batch against engines apart, short steps, unused exits, moving up.

    python benchmarks/tier_sweeps.py [--quick] [--json PATH]

A random Llama with an exit after half of its layers and one head for both tiers. N streams on each tier decode at the same
time; servers of each subject take turns. All times are processor times of the worker's process, which computes with one
thread: other work on the machine delays an answer, and hardly changes what it costs. ``ms_per_token`` is the time of all
steps by the number of a stream's tokens.

``together`` is the default of one batch (``tier_sweeps=lockstep``), ``apart`` computes the tiers in steps of their own
(``group_batching=no``: the same kernels, as if each tier had an engine), ``decoupled`` ends every second step at the exit.
S_1 and S_2 are the median times of the kernels of the lower and upper layers with that many rows, and H of the head,
measured in the same round. ``of_ideal`` is the measured saving divided by the ideal one:

- ``together``: 1 - (S_1(2n) + S_2(n) + 2 H(n)) / (S_1(n) + S_1(n) + S_2(n) + 2 H(n)) of the time apart;
- ``decoupled``: 1 - (S_1(2n) + S_1(n) + S_2(n) + 3 H(n)) / 2 / (S_1(2n) + S_2(n) + 2 H(n)) of a lower tier's token together;
- ``moving-up``: the share of the lower layers in the prefill of 512 tokens, of the time to the first token.

A lower tier gets two tokens for one of the top while short steps are decoupled, so its time a token is half of all steps
by the top's tokens. ``top_price`` is the time of a top tier's token in ``decoupled`` over the one together. ``unused`` is a
top tier's token on a server that lists the exit, over one on a server that does not. ``fused`` is one masked attention call
for all rows (section 6.2 of the paper) over one call for each row, in torch: ours computes all rows in one call without a
mask.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import harness
import numpy as np
import torch
import torch.nn.functional as F
from harness import OURS, Bar, Options, Report
from kernels_step import CACHED, LENGTH, Rig
from models import CONFIG_DTYPES, DTYPES, SIZES, make_model, prompts
from server import Served, served

from blockwright.gpu.backend import Batch

PROMPT, LONG = 8, 512
TOKENS = {"S": 48, "M": 24}  # of an answer
THREADS = 1  # two that share busy cores wait for each other, and spend processor time on it
SUBJECTS = {
    "together": ("tier_sweeps=lockstep",),
    "apart": ("group_batching=no",),
    "decoupled": ("tier_sweeps=decoupled", "tier_turns=1"),
}
PLAIN = "plain"  # the same checkpoint without an exit
SAVED, WORTH = 0.85, 0.10  # share of the ideal saving to reach, where the ideal is at least the second
SLOWER = 1.03  # most time relative to engines apart where little can be saved
UNUSED = {"S": 1.03, "M": 1.01}


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    sizes: tuple[str, ...] = ("S", "M")
    streams: tuple[int, ...] = (1, 2, 4, 8)  # on each tier
    rounds: int = 3
    repeats: int = 9  # of the kernels

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("S",), streams=(1, 4), rounds=1, repeats=5) if quick else cls()


class Segments(Rig):
    """The kernels of the layers below and above the exit, and of the head."""

    def __init__(self, size: str, dtype: str, threads: int, layers: int) -> None:
        super().__init__(SIZES[size], DTYPES[dtype], threads)
        exit = 1 + 2 * layers  # the embedding, then attention and feed-forward of each layer
        self._lower = self._backend.compose(self._packed[:exit], 0)
        self._upper = self._backend.compose(self._packed[exit:-1], layers)

    def lower(self, rows: int, positions: int = 1) -> Callable[[], object]:
        return lambda: self._backend.forward(self._lower, self._batch(rows, positions))

    def upper(self, rows: int, positions: int = 1) -> Callable[[], object]:
        return lambda: self._backend.forward(self._upper, self._batch(rows, positions))

    def hidden(self, tokens: int) -> torch.Tensor:
        """Return the hidden states [tokens, width] that the last call left."""
        return self._hidden_TD[:tokens]

    def head(self, rows: int) -> Callable[[], object]:
        return lambda: self._backend.argmax(self._backend.logits(self._head, self._last_ND[:rows]))

    def _batch(self, rows: int, positions: int) -> Batch:
        start = CACHED if CACHED + positions <= LENGTH else 0
        row_N, start_N, count_N = (
            np.array(column, dtype=np.int32) for column in (range(rows), [start] * rows, [positions] * rows)
        )
        return Batch(row_N, start_N, count_N, self._hidden_TD[: rows * positions])


def usual(call: Callable[[], object], repeats: int) -> float:
    """Return the median processor seconds of a call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


async def decoding(server: Served, model: str, count: int, tokens: int, seed: int, size: str) -> None:
    """Have streams decode at the same time."""

    async def one(prompt: list[int]) -> None:
        async for _ in renamed(server, model).stream(prompt, tokens):
            pass

    await asyncio.gather(*(one(prompt) for prompt in prompts(size, count, PROMPT, seed=seed)))


def renamed(server: Served, model: str) -> Served:
    """Return the same server, of which requests ask for another model."""
    return Served(server.process, server.session, server.base, model)


async def turn(server: Served, subject: str, n: int, seed: int, size: str) -> float:
    """Return the seconds of all steps by the top tier's tokens of a stream.

    With every second step short, the lower tier gets twice as many tokens, so that both decode all the time.
    """
    exit, tokens = f"{server.model}:{SIZES[size].layers // 2}", TOKENS[size]
    longer = 2 * tokens if subject == "decoupled" else tokens
    began = server.worker_cpu_seconds()
    await asyncio.gather(
        decoding(server, exit, n, longer, seed, size), decoding(server, server.model, n, tokens, seed + 1, size)
    )
    return (server.worker_cpu_seconds() - began) / tokens


async def alone(server: Served, n: int, seed: int, size: str) -> float:
    """Return the seconds of all steps by the tokens of a stream, where only the top tier has streams."""
    began = server.worker_cpu_seconds()
    await decoding(server, server.model, n, TOKENS[size], seed, size)
    return (server.worker_cpu_seconds() - began) / TOKENS[size]


async def first_token(server: Served, model: str, prompt: list[int]) -> float:
    """Return the seconds to the first token."""
    began = server.worker_cpu_seconds()
    async for _ in renamed(server, model).stream(prompt, 1):
        pass
    return server.worker_cpu_seconds() - began


class Bench:
    """The servers of one model size, and its kernels."""

    def __init__(self, report: Report, plan: Plan, size: str, dtype: str) -> None:
        self._report = report
        self._plan = plan
        self._size = size
        self._dtype = dtype
        self._servers: dict[str, Served] = {}
        self._kernels = Segments(size, dtype, THREADS, SIZES[size].layers // 2)

    async def run(self, folder: Path) -> None:
        layers = SIZES[self._size].layers
        common = ("--workers", "1", "--dtype", CONFIG_DTYPES[self._dtype], "--set", f"threads={THREADS}")
        async with AsyncExitStack() as stack:
            for name, settings in {**SUBJECTS, PLAIN: ()}.items():
                exits = () if name == PLAIN else (f"exits.{folder.name}={layers // 2}", *settings)
                words = [word for setting in exits for word in ("--set", setting)]
                self._servers[name] = await stack.enter_async_context(served(folder, *common, *words))
            for n in self._plan.streams:
                await self._compare(n)
            await self._move_up()

    async def _compare(self, n: int) -> None:
        """Measure all subjects in turns, and their ideals."""
        found: dict[str, list[float]] = {name: [] for name in (*self._servers, "unused")}
        ideals: list[tuple[float, float]] = []
        for number in range(self._plan.rounds):
            seed = 100 * n + 10 * number
            for name, server in self._servers.items():
                if name == PLAIN:
                    found[name].append(await alone(server, n, seed, self._size))
                    found["unused"].append(await alone(self._servers["together"], n, seed + 2, self._size))
                else:
                    found[name].append(await turn(server, name, n, seed, self._size))
            ideals.append(self._ideal(n))
        cost = {name: statistics.median(values) for name, values in found.items()}
        together, decoupled = (statistics.median(column) for column in zip(*ideals, strict=True))
        low = cost["decoupled"] / 2
        self._add(f"n{n}", "together", cost["together"], 1 - cost["together"] / cost["apart"], together)
        self._report.add(f"{self._size}/n{n}/together", OURS, {"of_apart": cost["together"] / cost["apart"]})
        self._add(f"n{n}", "decoupled", low, 1 - low / cost["together"], decoupled)
        self._report.add(f"{self._size}/n{n}/decoupled", OURS, {"top_price": cost["decoupled"] / cost["together"]})
        self._report.add(f"{self._size}/n{n}/unused", OURS, {"unused": cost["unused"] / cost[PLAIN]})
        self._report.add(f"{self._size}/n{n}/fusion", OURS, {"fused": fused(n, SIZES[self._size].heads)})
        print(self._size, n, {name: [round(1000 * one, 2) for one in every] for name, every in found.items()}, flush=True)

    def _add(self, what: str, subject: str, seconds: float, saving: float, ideal: float) -> None:
        found = {"ms_per_token": 1000 * seconds, "saving": saving, "ideal": ideal, "of_ideal": saving / ideal}
        self._report.add(f"{self._size}/{what}/{subject}", OURS, found)

    def _ideal(self, n: int) -> tuple[float, float]:
        """Return the ideal savings of one batch, and of short steps."""
        kernels, repeats = self._kernels, self._plan.repeats
        both = usual(kernels.lower(2 * n), repeats)
        single = usual(kernels.lower(n), repeats)
        upper = usual(kernels.upper(n), repeats)
        head = usual(kernels.head(n), repeats)
        together = both + upper + 2 * head
        apart = 2 * single + upper + 2 * head
        return 1 - together / apart, 1 - (both + single + upper + 3 * head) / 2 / together

    async def _move_up(self) -> None:
        """Measure the first token of the top tier, for prompts that the lower tier has computed and for others."""
        server = self._servers["together"]
        exit = f"{server.model}:{SIZES[self._size].layers // 2}"
        fresh, moved = list[float](), list[float]()
        for number in range(2 * self._plan.rounds):
            first, second = prompts(self._size, 2, LONG, seed=9000 + number)
            fresh.append(await first_token(server, server.model, first))
            await first_token(server, exit, second)
            moved.append(await first_token(server, server.model, second))
        lower, upper = (usual(call(1, 256), self._plan.repeats) for call in (self._kernels.lower, self._kernels.upper))
        saving, ideal = 1 - statistics.median(moved) / statistics.median(fresh), lower / (lower + upper)
        self._add("512", "moving-up", statistics.median(moved), saving, ideal)


def fused(n: int, heads: int) -> float:
    """Return the time of one masked attention call for n decoding rows, over the time of a call for each."""
    generator = torch.Generator().manual_seed(1)
    lengths = [CACHED + 16 * row for row in range(n)]
    every = sum(lengths)
    q_QNH = torch.randn(heads, n, 64, generator=generator)
    k_QSH, v_QSH = (torch.randn(heads, every, 64, generator=generator) for _ in range(2))
    owner_S = torch.repeat_interleave(torch.arange(n), torch.tensor(lengths))
    mask_NS = torch.arange(n)[:, None] == owner_S[None]
    bounds = np.cumsum([0, *lengths]).tolist()

    def one_call() -> None:
        F.scaled_dot_product_attention(q_QNH, k_QSH, v_QSH, attn_mask=mask_NS)

    def each() -> None:
        for row, (first, last) in enumerate(pairwise(bounds)):
            F.scaled_dot_product_attention(q_QNH[:, row : row + 1], k_QSH[:, first:last], v_QSH[:, first:last])

    return usual(one_call, 9) / usual(each, 9)


def bars(report: Report, plan: Plan) -> list[Bar]:
    """Return the bars, which depend on the ideals that were measured."""
    found = []
    for size in plan.sizes:
        for n in plan.streams:
            worth = (report.median(f"{size}/n{n}/together", "ideal", OURS) or 0.0) >= WORTH
            case = f"{size}/n{n}/together"
            found.append(Bar(case, "of_ideal", at_least=SAVED) if worth else Bar(case, "of_apart", at_most=SLOWER))
            found.append(Bar(f"{size}/n{n}/decoupled", "of_ideal", at_least=SAVED))
            found.append(Bar(f"{size}/n{n}/unused", "unused", at_most=UNUSED[size]))
        found.append(Bar(f"{size}/512/moving-up", "of_ideal", at_least=SAVED))
    return found


@harness.claim("Tiers in one batch, short steps and moves up save what their ideals say", of="families")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"tokens": TOKENS, "rounds": plan.rounds, "dtype": "f32", "threads": THREADS, "time": "processor"}
    report = Report("tier_sweeps", settings)
    with tempfile.TemporaryDirectory(prefix="blockwright-tiers-") as name:
        for size in plan.sizes:
            folder = make_model(size, "f32", Path(name) / size)
            asyncio.run(Bench(report, plan, size, "f32").run(folder))
    harness.finish(report, options, bars(report, plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))

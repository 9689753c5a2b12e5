"""Cost of low-rank deltas: sweeps of decoding rows of several LoRA tenants against the same sweeps of the base alone.

    python benchmarks/deltas.py [--quick] [--json PATH]

8 tenants of rank 16 share a sweep of 32 rows; their adapters change queries and values (the default of ``peft`` for a
Llama), all of attention, or all seven products of a layer. Sweeps with and without deltas alternate in one process.
``ratio`` is the median sweep with deltas divided by the median without. ``bytes_ratio`` is the bytes to read, weights and
deltas, divided by the weights.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import harness
import numpy as np
import torch
from harness import OURS, Bar, Options, Report
from kernels_step import CACHED, Rig, aligned, parts
from models import DTYPES, SIZES

from blockwright.gpu.backend import Batch
from blockwright.gpu.model.config import ComponentSpec, DeltaSpec, TensorRef, tensor_shapes
from blockwright.gpu.model.deltas import DeltaConfig, LoraTerm
from blockwright.policies.model.chain import Component

TENANTS = 8
RANK = 16
ROWS = 32
TARGETS = {
    "qv": ("q", "v"),
    "attention": ("q", "k", "v", "o"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
}
CASES = [f"{size}/{dtype}" for size in ("S", "M") for dtype in ("f32", "bf16")]
BARS = [Bar(f"{model}/{targets}", "ratio", at_most=1.12) for model in CASES for targets in TARGETS]


def _result(steps: Generator[int, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class TenantRig(Rig):
    """The rig with tenants attached to its body."""

    def attach(self, size_name: str, targets: tuple[str, ...], first: int) -> int:
        """Bytes that the tenants added, whose numbers begin with ``first``."""
        already = len(self._memory)
        generator = torch.Generator().manual_seed(7)
        for number in range(first, first + TENANTS):
            inside = {}
            for place, (kind, config, _) in enumerate(parts(SIZES[size_name])[:-1]):
                shapes = tensor_shapes(config)
                roles = [role for role in targets if role in shapes]
                if not roles:
                    continue
                raw = {f"{role}.a": torch.randn(RANK, shapes[role][1], generator=generator) for role in roles}
                raw |= {f"{role}.b": torch.randn(shapes[role][0], RANK, generator=generator) for role in roles}
                refs = {n: TensorRef("", f"{number}/{place}/{n}", "F32", tuple(t.shape), 0, 0) for n, t in raw.items()}
                terms = tuple(LoraTerm(role=role, rank=RANK, scale=0.01) for role in roles)
                delta = DeltaSpec(f"{number}/{place}".encode(), DeltaConfig(lora=terms), refs)
                spec = replace(ComponentSpec(Component(b"", kind, 0, 1, 1), config), delta=delta)
                (part,) = self._backend.parts(spec)
                self._memory.append(aligned(part.nbytes))
                inside[place] = _result(self._backend.pack_delta(spec, raw, self._memory[-1]))
            self._backend.attach(self._body, number, inside)
        return sum(memory.numel() for memory in self._memory[already:])

    @property
    def weights(self) -> int:
        """Bytes of all packed weights; the first memory is the cache."""
        return sum(memory.numel() for memory in self._memory[1:])

    def decode(self, first: int) -> float:
        """Seconds of a sweep of rows which belong to the tenants from ``first`` on in equal parts (0: all to the base)."""
        row_N, count_N = np.arange(ROWS, dtype=np.int32), np.ones(ROWS, dtype=np.int32)
        start_N = np.full(ROWS, CACHED, dtype=np.int32)
        delta_N = (np.arange(ROWS) * TENANTS // ROWS + first).astype(np.int32) if first else None
        began = time.perf_counter()
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, self._hidden_TD[:ROWS], delta_N))
        self._backend.argmax(self._backend.logits(self._head, self._last_ND[:ROWS]))
        return time.perf_counter() - began


def measure(model: str, rounds: int, sweeps: int, threads: int) -> Iterator[tuple[str, dict[str, float]]]:
    """For each round and choice of targets (its name, metrics); one sweep of each, then the next."""
    size, dtype = model.split("/")
    rig = TenantRig(SIZES[size], DTYPES[dtype], threads)
    weights = rig.weights
    firsts = {}
    added = {}
    for place, (name, targets) in enumerate(TARGETS.items()):
        firsts[name] = 1 + place * TENANTS
        added[name] = rig.attach(size, targets, firsts[name])
    for first in (0, *firsts.values()):
        rig.decode(first)
    for _ in range(rounds):
        times: dict[int, list[float]] = {first: [] for first in (0, *firsts.values())}
        for _ in range(sweeps):
            for first, spent in times.items():
                spent.append(1000 * rig.decode(first))
        medians = {first: statistics.median(spent) for first, spent in times.items()}
        for name, first in firsts.items():
            ratios = {"ratio": medians[first] / medians[0], "bytes_ratio": (weights + added[name]) / weights}
            yield f"{model}/{name}", {"base_ms": medians[0], **ratios}


@harness.claim("Eight LoRA adapters of rank 16 on queries and values cost at most 12 % of a sweep", of="fine-tunes")
def main(options: Options) -> None:
    torch.set_num_threads(1)
    threads = len(os.sched_getaffinity(0))
    settings = {"tenants": TENANTS, "rank": RANK, "rows": ROWS, "threads": threads}
    report = Report("deltas", settings)
    for model in CASES[:2] if options.quick else CASES:
        for case, metrics in measure(model, 3, 3 if options.quick else 10, threads):
            report.add(case, OURS, metrics)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))

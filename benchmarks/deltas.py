"""What low-rank deltas cost: sweeps of decoding rows of several LoRA tenants against the same sweeps of the base alone.

    python benchmarks/deltas.py [--quick] [--json PATH]

8 tenants of rank 16 share a sweep of 32 rows; their adapters change queries and values (what ``peft`` takes for a Llama),
all of attention, or all seven products of a layer. Sweeps with and without take turns in one process. ``ratio`` is the
median sweep with deltas divided by that without; ``bytes_ratio`` what it has to read, weights and deltas, by the weights.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

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

TENANTS, RANK, ROWS = 8, 16, 32
TARGETS = {
    "qv": ("q", "v"),
    "attention": ("q", "k", "v", "o"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
}
CASES = [f"{size}/{dtype}" for size in ("S", "M") for dtype in ("f32", "bf16")]
BARS = [Bar(f"{model}/{targets}", "ratio", at_most=1.12) for model in CASES for targets in TARGETS]


class TenantRig(Rig):
    """The rig with tenants attached to its body, numbers from 1 on."""

    def attach(self, size_name: str, targets: tuple[str, ...]) -> int:
        """Bytes that all tenants added."""
        already = len(self._memory)
        generator = torch.Generator().manual_seed(7)
        for number in range(1, TENANTS + 1):
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
                inside[place] = self._backend.pack_delta(spec, raw, self._memory[-1])
            self._backend.attach(self._body, number, inside)
        return sum(memory.numel() for memory in self._memory[already:])

    @property
    def weights(self) -> int:
        """Bytes of all packed weights; the first memory is the cache."""
        return sum(memory.numel() for memory in self._memory[1:])

    def decode(self, tenants: int) -> float:
        """Seconds of a sweep of rows which belong to so many tenants in equal parts (0: all to the base)."""
        row_N, count_N = np.arange(ROWS, dtype=np.int32), np.ones(ROWS, dtype=np.int32)
        start_N = np.full(ROWS, CACHED, dtype=np.int32)
        delta_N = (np.arange(ROWS) * tenants // ROWS + 1).astype(np.int32) if tenants else None
        began = time.perf_counter()
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, self._hidden_TD[:ROWS], delta_N))
        self._backend.argmax(self._backend.logits(self._head, self._last_ND[:ROWS]))
        return time.perf_counter() - began


def measure(model: str, targets: str, seconds: float, threads: int) -> dict[str, float]:
    size, dtype = model.split("/")
    rig = TenantRig(SIZES[size], DTYPES[dtype], threads)
    weights = rig.weights
    added = rig.attach(size, TARGETS[targets])
    times: dict[int, list[float]] = {0: [], TENANTS: []}
    for turn in range(8):
        rig.decode(TENANTS * (turn % 2))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for some in times:
            times[some].append(rig.decode(some))
    base, changed = (1000 * statistics.median(times[some]) for some in (0, TENANTS))
    return {"base_ms": base, "ratio": changed / base, "bytes_ratio": (weights + added) / weights}


def main(options: Options) -> None:
    torch.set_num_threads(1)
    threads = len(os.sched_getaffinity(0))
    settings = {"tenants": TENANTS, "rank": RANK, "rows": ROWS, "threads": threads}
    report = Report("deltas", settings)
    for _ in range(1 if options.quick else 3):
        for model in CASES:
            for targets in TARGETS:
                report.add(f"{model}/{targets}", OURS, measure(model, targets, 0.2 if options.quick else 1.0, threads))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))

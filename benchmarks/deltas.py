"""What low-rank deltas cost: sweeps of decoding rows of several LoRA tenants against the same sweeps of the base alone.

    python benchmarks/deltas.py [--tenants 8] [--rank 16] [--rows 32] [--targets all|attention|qv] [SIZE/DTYPE ...]

Prints a line for each model: median milliseconds of a sweep without and with deltas, taken in turns, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from kernels_step import CACHED, Rig, aligned, parts
from models import DTYPES, SIZES

from blockwright.gpu.backend import Batch
from blockwright.gpu.model.config import ComponentSpec, DeltaSpec, TensorRef, tensor_shapes
from blockwright.gpu.model.deltas import DeltaConfig, LoraTerm
from blockwright.policies.model.chain import Component

TARGETS = {
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
    "attention": ("q", "k", "v", "o"),
    "qv": ("q", "v"),
}


class TenantRig(Rig):
    """The rig with tenants attached to its body, numbers from 1 on."""

    def attach(self, size_name: str, tenants: int, rank: int, targets: tuple[str, ...]) -> None:
        generator = torch.Generator().manual_seed(7)
        for number in range(1, tenants + 1):
            inside = {}
            for place, (kind, config, _) in enumerate(parts(SIZES[size_name])[:-1]):
                shapes = tensor_shapes(config)
                roles = [role for role in targets if role in shapes]
                if not roles:
                    continue
                raw = {f"{role}.a": torch.randn(rank, shapes[role][1], generator=generator) for role in roles}
                raw |= {f"{role}.b": torch.randn(shapes[role][0], rank, generator=generator) for role in roles}
                refs = {n: TensorRef("", f"{number}/{place}/{n}", "F32", tuple(t.shape), 0, 0) for n, t in raw.items()}
                terms = tuple(LoraTerm(role=role, rank=rank, scale=0.01) for role in roles)
                delta = DeltaSpec(f"{number}/{place}".encode(), DeltaConfig(lora=terms), refs)
                spec = replace(ComponentSpec(Component(b"", kind, 0, 1, 1), config), delta=delta)
                (part,) = self._backend.parts(spec)
                self._memory.append(aligned(part.nbytes))
                inside[place] = _result(self._backend.pack_delta(spec, raw, self._memory[-1]))
            self._backend.attach(self._body, number, inside)

    def decode(self, rows: int, tenants: int) -> float:
        """Seconds of a sweep of ``rows`` rows, which belong to so many tenants in equal parts (0: all to the base)."""
        row_N, count_N = np.arange(rows, dtype=np.int32), np.ones(rows, dtype=np.int32)
        start_N = np.full(rows, CACHED, dtype=np.int32)
        delta_N = (np.arange(rows) * tenants // rows + 1).astype(np.int32) if tenants else None
        began = time.perf_counter()
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, self._hidden_TD[:rows], delta_N))
        self._backend.argmax(self._backend.logits(self._head, self._last_ND[:rows]))
        return time.perf_counter() - began


def _result(steps: Generator[int, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def measure(model: str, tenants: int, rank: int, rows: int, targets: str, seconds: float, threads: int) -> str:
    size, dtype = model.split("/")
    rig = TenantRig(SIZES[size], DTYPES[dtype], threads)
    rig.attach(size, tenants, rank, TARGETS[targets])
    times: dict[int, list[float]] = {0: [], tenants: []}
    for turn in range(8):
        rig.decode(rows, tenants * (turn % 2))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for some in times:
            times[some].append(rig.decode(rows, some))
    base, changed = (statistics.median(times[some]) * 1000 for some in (0, tenants))
    best = min(times[tenants]) / min(times[0])
    return (
        f"{model:6} {tenants} tenants, rank {rank}, {targets:9} {rows} rows: {base:8.3f} ms without, {changed:8.3f} ms "
        f"with, ratio {changed / base:.3f} (of the shortest {best:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["S/f32", "S/bf16", "M/f32", "M/bf16"])
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--targets", choices=TARGETS, default="all")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.models:
        line = measure(model, options.tenants, options.rank, options.rows, options.targets, options.seconds, options.threads)
        print(line, flush=True)


if __name__ == "__main__":
    main()

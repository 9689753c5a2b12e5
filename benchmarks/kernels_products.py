"""Timing of single products of the kernels, alternating with torch's ``F.linear``; a child of ``kernels.py``.

    python benchmarks/kernels_products.py THREADS SECONDS INSTRUCTION_SET

Prints a line for each measurement: its case, its subject and the median of its GFLOP/s. A product of ours is the head of a
model with its norm, so that the weight is packed as in a worker. torch computes the product alone, with the same number of
threads. Weights alternate, so that they come from memory as in a sweep.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from accuracy_ours import instruction_sets
from harness import OURS
from kernels_step import aligned
from models import DTYPES

from blockwright.gpu.cpu.native.backend import NativeBackend, NativeRun
from blockwright.gpu.model.config import ComponentSpec, HeadConfig, NormConfig
from blockwright.gpu.tables import Tables
from blockwright.policies.model.chain import Component, Kind

TORCH, FLOAT32 = "torch", "float32"
PRODUCTS = ((1024, 1536), (1024, 5632), (2816, 1024))  # of M: elements of a row, columns
ROWS = (1, 8, 16, 32, 128, 256)
MEMORY = 100e6  # bytes of float32 weights that take turns
REPEATS = 3  # of a subject before the next one's turn
PAUSE = 0.003  # seconds in which the threads of the subject before fall asleep


class Products:
    """The weights of one shape, packed for a back end."""

    def __init__(self, backend: NativeBackend, weights: Sequence[torch.Tensor]) -> None:
        self._backend = backend
        self._runs = list[NativeRun]()
        self._memory = list[torch.Tensor]()
        columns, width = weights[0].shape
        component = Component(b"", Kind.HEAD, 0, width, width, None)
        spec = ComponentSpec(component, HeadConfig(vocabulary=columns, hidden=width, norm=NormConfig(eps=1e-5)))
        for weight in weights:
            self._runs.append(self._packed(spec, {"norm": torch.ones(width), "weight": weight}))

    def _packed(self, spec: ComponentSpec, tensors: dict[str, torch.Tensor]) -> NativeRun:
        places = {}
        for part in self._backend.parts(spec):
            places[part.role] = aligned(part.nbytes)
            self._backend.pack(part, tensors[part.role], places[part.role])
        self._memory += places.values()
        return self._backend.compose([self._backend.assemble(spec, places)], 0)

    def multiply(self, rows_ND: torch.Tensor, turn: int) -> torch.Tensor:
        return self._backend.logits(self._runs[turn % len(self._runs)], rows_ND)


def median_seconds(subjects: dict[str, Callable[[int], object]], seconds: float) -> dict[str, float]:
    """Return the median time of a call of each subject; subjects take turns, and the first call of a turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    end, turn = time.perf_counter() + seconds * len(subjects), 0
    while turn < REPEATS or time.perf_counter() < end:
        for name, call in subjects.items():
            time.sleep(PAUSE)
            call(turn)
            for repeat in range(REPEATS):
                began = time.perf_counter()
                call(turn + repeat + 1)
                times[name].append(time.perf_counter() - began)
        turn += 1
    return {name: statistics.median(found) for name, found in times.items()}


def linear(weights: Sequence[torch.Tensor], rows_ND: torch.Tensor, turn: int) -> torch.Tensor:
    return torch.nn.functional.linear(rows_ND, weights[turn % len(weights)])


def main(threads: int, seconds: float, instruction_set: str) -> None:
    torch.set_num_threads(threads)
    backends = {}
    for name, dtype in DTYPES.items():
        full = str(dtype).removeprefix("torch.")
        if instruction_set in instruction_sets(full):
            backends[name] = NativeBackend(full, threads, instruction_set)
            backends[name].reserve(Tables(1, 16, 1, 16), max(ROWS), max(ROWS))
    for width, columns in PRODUCTS:
        drawn = [torch.randn(columns, width) / width**0.5 for _ in range(1 + int(MEMORY / (4 * width * columns)))]
        ours = {name: Products(backend, drawn) for name, backend in backends.items()}
        theirs = {name: [weight.to(DTYPES[name]) for weight in drawn] for name in backends}
        for count in ROWS:
            subjects: dict[str, Callable[[int], object]] = {}
            for name, products in ours.items():
                rows_ND = torch.randn(count, width).to(DTYPES[name])
                subjects[f"{name} {OURS}"] = partial(products.multiply, rows_ND)
                subjects[f"{name} {TORCH}"] = partial(linear, theirs[name], rows_ND)
            found = median_seconds(subjects, seconds)
            if len(ours) == len(DTYPES):
                found[f"bf16 {FLOAT32}"] = found[f"f32 {OURS}"]
            for subject, took in found.items():
                name, who = subject.split()
                flops = 2 * count * width * columns
                print(f"{instruction_set}/{name}/{width}x{columns}/{count} {who} {flops / took / 1e9}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])

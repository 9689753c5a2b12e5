"""The cells of the comparison with transformers: every combination, and a small cover of all pairs of choices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

AXES: dict[str, tuple[object, ...]] = {
    "architecture": (
        "llama", "llama-tied", "llama-biases", "llama-multihead", "llama3", "llama-linear", "mistral", "mistral-window",
        "qwen2", "qwen2-windows",
    ),
    "topology": ("one", "replicas", "pipeline"),
    "sizes": ((16, 256), (8, 32), (5, 7)),  # page_size, chunk_size
    "backend": ("native", "torch"),
    "memory": ("ample", "tight"),  # tight: 1.3 of the longest sequence, so that pages are evicted and sequences preempted
    "sampling": ("greedy", "seeded"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One cluster and how it is used."""

    architecture: str
    topology: str
    sizes: tuple[int, int]
    backend: str
    memory: str
    sampling: str

    def __str__(self) -> str:
        page, chunk = self.sizes
        return "-".join((self.architecture, self.topology, f"{page}x{chunk}", self.backend, self.memory, self.sampling))


def every() -> list[Cell]:
    return [Cell(*values) for values in itertools.product(*AXES.values())]  # type: ignore[arg-type]


def pairwise() -> list[Cell]:
    """Few cells that hold every pair of values of any two axes; the same on each call."""

    def pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
        values = [getattr(cell, name) for name in AXES]
        return {(i, values[i], j, values[j]) for i, j in itertools.combinations(range(len(values)), 2)}

    cells = every()
    missing = set().union(*(pairs(cell) for cell in cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen

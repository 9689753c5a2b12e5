"""The cells of the comparison with transformers: every combination, and a small cover of pairs of choices. The reference
back end takes most of the time: it comes in where it holds more pairs.

Covered pair by pair are those architectures whose kind of parameters or attention meets the other choices: plain, with a
head that is the embedding, and with windows. The further ones differ from them in what components compute, not in how they
are served: each has one cell of the cover, and these together hold every pair of the other choices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

AXES: dict[str, tuple[object, ...]] = {
    "architecture": ("llama", "llama-tied", "mistral-window", "qwen2-windows"),
    "topology": ("one", "replicas", "pipeline"),
    "sizes": ((16, 256), (8, 32), (5, 7)),  # page_size, chunk_size
    "backend": ("native", "torch"),
    "memory": ("ample", "tight"),  # tight: 1.3 of the longest sequence, so that pages are evicted and sequences preempted
    "sampling": ("greedy", "seeded"),
}  # fmt: skip
FURTHER = (
    "llama-biases", "llama-multihead", "llama3", "llama-linear", "mistral", "qwen2", "gemma", "gemma2", "glm4", "glm",
    "gpt-neox", "gpt-neox-serial", "granite", "olmo2", "phi3", "phi3-longrope", "qwen3",
)  # fmt: skip
OTHERS = [name for name in AXES if name != "architecture"]


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


Pair = tuple[str, object, str, object]


def cells_of(architectures: Iterable[object]) -> list[Cell]:
    """Every combination of these architectures with the other choices."""
    others = [AXES[name] for name in OTHERS]
    return [Cell(*values) for values in itertools.product(architectures, *others)]  # type: ignore[arg-type]


def every() -> list[Cell]:
    return cells_of((*AXES["architecture"], *FURTHER))


def pairs(cell: Cell, names: Iterable[str] = tuple(AXES)) -> set[Pair]:
    """The choices of a cell, two at a time."""
    return {(a, getattr(cell, a), b, getattr(cell, b)) for a, b in itertools.combinations(names, 2)}


def one_each() -> list[Cell]:
    """One cell of each further architecture; together they hold every pair of the other choices, if they are enough. If they
    are more, the others begin again without the reference back end."""
    chosen: list[Cell] = []
    missing: set[Pair] = set()
    for architecture in FURTHER:
        cells = cells_of([architecture])
        if not missing:
            cells = [cell for cell in cells if cell.backend == "native" or not chosen]
            missing = set().union(*(pairs(cell, OTHERS) for cell in cells))
        chosen.append(max(cells, key=lambda cell: (len(pairs(cell, OTHERS) & missing), cell.backend == "native")))
        missing -= pairs(chosen[-1], OTHERS)
    return chosen


def brief(cover: Iterable[Cell]) -> list[Cell]:
    """Return few cells of the cover that hold every pair of choices but architectures, which change from cell to cell."""
    cells = list(cover)
    missing = set().union(*(pairs(cell, OTHERS) for cell in cells))
    chosen: list[Cell] = []
    while missing:
        taken = [cell.architecture for cell in chosen]
        best = max(
            cells,
            key=lambda cell: (len(pairs(cell, OTHERS) & missing), cell.backend == "native", -taken.count(cell.architecture)),
        )
        chosen.append(best)
        missing -= pairs(best, OTHERS)
    return chosen


def pairwise() -> list[Cell]:
    """Few cells that hold every pair of values of any two axes; the same on each call."""
    cells = cells_of(AXES["architecture"])
    missing = set().union(*(pairs(cell) for cell in cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: (len(pairs(cell) & missing), cell.backend == "native"))
        chosen.append(best)
        missing -= pairs(best)
    return chosen

"""Footprint of a worker on a card beside its pool of chunks, from the shapes of its models: asked before a worker starts.

An upper bound by the formulas of what takes it: ``forward.py`` and ``backend.py`` (scratch), ``tables.py``, ``graphs.py``,
``prove.py`` (a second, small set, while shapes are proved). No torch: the head asks. Legend: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...policies.binary_size import binary_size
from ..model.config import ModelConfig
from .tiles import BFLOAT16, FLOAT32, Tiling

CONTEXT = 640 << 20  # bytes of a worker's context, torch and the kernels' machine code
GRAPHS = 64 << 20  # most bytes of recorded graphs
COPIES = 2 << 20  # bytes of plans, results, edits and slots on their way
MOST_HEADS, LEAST_HEADS = 256, 32  # rows of a head at a time
CHOSEN_TOGETHER = 16  # rows that are drawn by all parameters at a time
PROVED, PROVED_ROWS = 368, 66  # tokens and rows of a proof


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """The sizes of a worker that count here. ``dtype`` is the type that it computes in."""

    rows: int
    tokens: int  # of a sweep
    length: int  # of the longest sequence
    page: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes by use, ``context`` included."""

    scratch: int = 0
    tables: int = 0
    rotary: int = 0
    proofs: int = 0
    graphs: int = GRAPHS
    context: int = CONTEXT

    @property
    def total(self) -> int:
        return self.scratch + self.tables + self.rotary + self.proofs + self.graphs + self.context

    @property
    def sizes(self) -> str:
        """The parts beside the context, as a person reads them: "212 MiB scratch, ..."."""
        parts = ("scratch", self.scratch), ("tables", self.tables + self.rotary), ("proofs", self.proofs)
        return ", ".join(f"{binary_size(nbytes)} {name}" for name, nbytes in (*parts, ("graphs", self.graphs)))


def footprint(models: Iterable[ModelConfig], shape: WorkerShape) -> Footprint:
    """Return the footprint of a worker of these models, whose runs share scratch."""
    every = list(models)
    layers = max(model.layers for model in every)
    rotary = {(model.rope, model.head_dim, window) for model in every for window in set(model.windows)}
    return Footprint(
        scratch=_scratch(every, shape) + COPIES,
        tables=_tables(shape, layers),
        rotary=sum(4 * shape.length * head_dim for _, head_dim, _ in rotary),
        proofs=_proofs(every, shape),
    )


def _tables(shape: WorkerShape, layers: int) -> int:
    return 4 * shape.rows * (shape.length + (layers + 1) * -(-shape.length // shape.page))


def _proofs(models: list[ModelConfig], shape: WorkerShape) -> int:
    tokens = min(shape.tokens, PROVED)
    small = WorkerShape(min(PROVED_ROWS, tokens), tokens, tokens, shape.page, shape.dtype)
    rotary = max(4 * tokens * model.head_dim for model in models)
    return _scratch(models, small) + _tables(small, 2) + rotary + COPIES


def _scratch(models: list[ModelConfig], shape: WorkerShape) -> int:
    """Return the largest of each buffer, together. Buffers of deltas count: an application may bring some at any time."""
    largest: dict[str, int] = {}
    for model in models:
        for name, nbytes in _buffers(model, shape).items():
            largest[name] = max(largest.get(name, 0), nbytes)
    return sum(largest.values())


def _buffers(model: ModelConfig, shape: WorkerShape) -> dict[str, int]:
    tiling, size = (FLOAT32, 4) if shape.dtype == "float32" else (BFLOAT16, 2)
    tokens = max(shape.tokens, shape.rows)
    heads = min(MOST_HEADS, max(shape.rows, LEAST_HEADS))
    inner, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    hidden, wide = tokens * model.hidden * size, max(inner, model.intermediate)
    first = max(inner + 2 * kv, 2 * model.intermediate)
    second = max(tiling.product_bytes(tokens, width, model.hidden) for width in (inner, model.intermediate))
    logits = 4 * heads * model.vocabulary
    return {
        f"hidden {model.hidden}": hidden,
        "departures": 4 * shape.tokens * model.hidden * size,
        "gathered": hidden,
        "headed": heads * model.hidden * size,
        "input": hidden,
        "queries": tokens * inner * size,
        "attended": tokens * wide * size,
        "parts": _parts(tiling, tokens, shape.length, model),
        "first": max(
            tiling.product_bytes(tokens, model.hidden, inner + 2 * kv),
            tiling.product_bytes(tokens, model.hidden, 2 * model.intermediate),
            tiling.product_bytes(heads, model.hidden, model.vocabulary),
        ),
        "first delta": 4 * max(tokens * first, heads * model.vocabulary),
        "second": second,
        "second delta": 4 * tokens * model.hidden,
        "side": second,
        "adapted": 8 * tokens * model.hidden,
        "logits": logits,
        "chosen": 16 * CHOSEN_TOGETHER * model.vocabulary,
    }


def _parts(tiling: Tiling, tokens: int, longest: int, model: ModelConfig) -> int:
    shape = model.heads // model.kv_heads, model.kv_heads, model.head_dim
    return max(tiling.attend_bytes(tokens, longest, *shape, window) for window in set(model.windows) or {None})

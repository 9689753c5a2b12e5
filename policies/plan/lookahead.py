"""Lookahead batches: waiting prompts are cut into microbatches of equal time, so that no stage of a pipeline idles.

After KunServe, section on lookahead batch formation. Equal token counts take unequal times, since a token attends to all
before it. The known prompts are cut into two halves of equal cost, and these again, as long as a half is worth a sweep. A
chunk at the cut is split where a quadratic formula says. Order is kept, so that the later part of a prompt is in a later
microbatch. Decoding rows, which are bound to the microbatch with their previous token, are distributed evenly first, and
prompts fill up the rest.

The cost of a chunk is the cost model's (``policies/plan/cost.py``), which is fitted already: ``attention`` (alpha of the
paper) is its ``prefill``, ``token`` (beta) its ``token + beyond``, and the fixed cost of a sweep (``base``, ``step``,
``read``) is a constant of the microbatch. It has no term for each chunk (gamma): that part is in the constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from .coefficients import Coefficients


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """A chunk: ``count`` tokens of a prompt from position ``start``."""

    request: str
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """A sequence of ``length`` tokens that draws its next one.

    ``microbatch``: the one that has drawn its last, -1: none.
    """

    request: str
    length: int
    microbatch: int = -1


@dataclass(slots=True)
class Microbatch:
    """The rows that pass a pipeline together."""

    decodes: list[DecodeRow] = field(default_factory=list)
    chunks: list[PromptChunk] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCost:
    """The cost of chunks, in seconds of a whole pass through all stages."""

    attention: float  # for each position that a prompt token attends to
    token: float
    context: float = 0.0  # for each position that a decoding row attends to
    sweep: float = 0.0  # fixed cost of a microbatch

    @classmethod
    def of(cls, costs: Coefficients, stages: int = 1) -> ChunkCost:
        """Return the costs from the coefficients of a device with the whole model. Each of ``stages`` has its own sweep."""
        fixed = stages * (costs.base + costs.step) + costs.read
        return cls(attention=costs.prefill, token=costs.token + costs.beyond, context=costs.context, sweep=fixed)

    def chunk(self, start: int, count: int) -> float:
        """Return cost(c, p) of the paper."""
        return self.attention * (start * count + count * (count + 1) / 2) + self.token * count

    def decode(self, row: DecodeRow) -> float:
        return self.context * row.length + self.token

    def microbatch(self, batch: Microbatch) -> float:
        """Return the cost of a microbatch; an empty one takes no sweep."""
        rows = sum(map(self.decode, batch.decodes)) + sum(self.chunk(one.start, one.count) for one in batch.chunks)
        return self.sweep + rows if batch.decodes or batch.chunks else 0.0

    def tokens(self, start: int, cost: float) -> int:
        """Return how many tokens after ``start`` take ``cost`` seconds: the positive root of the quadratic, rounded."""
        linear = self.attention * (start + 0.5) + self.token
        if self.attention <= 0:
            return round(cost / linear) if linear > 0 else 0
        return round((sqrt(linear**2 + 2 * self.attention * max(cost, 0.0)) - linear) / self.attention)


class Lookahead:
    """The former of microbatches.

    least: tokens from which a sweep computes at full speed; smaller ones are not made. stages: of the pipeline.
    """

    def __init__(self, cost: ChunkCost, least: int, stages: int) -> None:
        self._cost = cost
        self._least = least
        self._stages = stages

    def form(self, chunks: Sequence[PromptChunk], decodes: Sequence[DecodeRow] = (), *, waiting: bool) -> list[Microbatch]:
        """Return microbatches in running order.

        ``waiting``: whether requests wait. If not, one for each stage is made of the decoding rows, and prompts go into
        the first, since waiting for others would cost latency.
        """
        parts = self._halve(list(chunks)) if waiting else [list(chunks)]
        bound = 1 + max((row.microbatch for row in decodes), default=-1)
        batches = [Microbatch() for _ in range(max(len(parts), bound, min(self._stages, len(decodes))))]
        for row in sorted(decodes, key=lambda row: row.microbatch < 0):  # stable: bound rows first
            fewest = min(batches, key=lambda batch: len(batch.decodes))
            (batches[row.microbatch] if row.microbatch >= 0 else fewest).decodes.append(row)
        if waiting:
            self._fill(list(chunks), batches)
        else:
            batches[0].chunks = list(chunks)
        return [batch for batch in batches if batch.decodes or batch.chunks]

    def _halve(self, chunks: list[PromptChunk]) -> list[list[PromptChunk]]:
        """Return the leaves of the recursion, by prompts alone."""
        tokens = sum(one.count for one in chunks)
        if tokens <= self._least:
            return [chunks]
        left, right = self._cut(chunks, self._total(chunks) / 2)
        if min(sum(one.count for one in half) for half in (left, right)) < max(self._least / 2, 1):
            return [chunks]
        return self._halve(left) + self._halve(right)

    def _fill(self, chunks: list[PromptChunk], batches: Sequence[Microbatch]) -> None:
        """Distribute prompts so that all microbatches take equally long, including their decoding rows."""
        if len(batches) == 1:
            batches[0].chunks = chunks
            return
        half = len(batches) // 2
        rows = [sum(map(self._cost.decode, batch.decodes)) for batch in batches]
        each = (self._total(chunks) + sum(rows)) / len(batches)
        left, right = self._cut(chunks, each * half - sum(rows[:half]))
        self._fill(left, batches[:half])
        self._fill(right, batches[half:])

    def _total(self, chunks: Sequence[PromptChunk]) -> float:
        return sum(self._cost.chunk(one.start, one.count) for one in chunks)

    def _cut(self, chunks: Sequence[PromptChunk], cost: float) -> tuple[list[PromptChunk], list[PromptChunk]]:
        """Cut where the running cost reaches ``cost``."""
        for n, one in enumerate(chunks):
            took = self._cost.chunk(one.start, one.count)
            if took >= cost:
                count = min(max(self._cost.tokens(one.start, cost), 0), one.count)
                parts = (
                    PromptChunk(one.request, one.start, count),
                    PromptChunk(one.request, one.start + count, one.count - count),
                )
                left, right = [part for part in parts[:1] if part.count], [part for part in parts[1:] if part.count]
                return [*chunks[:n], *left], [*right, *chunks[n + 1 :]]
            cost -= took
        return list(chunks), []


def pipeline_seconds(times: Sequence[Sequence[float]]) -> float:
    """Return when the last microbatch leaves the last stage, by the recurrence of the flow shop (Johnson 1954).

    ``times``: of each microbatch, seconds at each stage.
    """
    ends = [0.0] * len(times[0]) if times else []
    for batch in times:
        before = 0.0
        for stage, seconds in enumerate(batch):
            ends[stage] = before = max(ends[stage], before) + seconds
    return ends[-1] if ends else 0.0

"""Shapes of the sweeps to time: a grid for fitting the cost model, and random sweeps that it has never seen.

They cover batch sizes, token counts, context lengths, prompts beside decoding rows, prompts without a draw of the next
token, the chain in several runs, and half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

ROWS = 48  # rows of the tables; the first ``LONG_ROWS`` of them hold long sequences
LONG_ROWS = 4
LONG, SHORT = 2048, 640  # most tokens of these and of the other rows
SWEEP_TOKENS = 512
DECODING = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
CONTEXTS = (0.03, 0.4, 0.9)  # fractions of the longest context
RUNS = ("whole", "pieces", "half")  # the whole chain; its body in several runs; the first half of these, as on a pipeline


@dataclass(frozen=True, slots=True)
class SweepShape:
    """Batch rows (row, start, count). ``drawn``: prompts end in this sweep. ``runs``: one of ``RUNS``."""

    batch: tuple[tuple[int, int, int], ...]
    drawn: bool = True
    runs: str = "whole"


@dataclass(frozen=True, slots=True)
class RowLengths:
    """Numbers of tokens that rows hold, as far as the model allows."""

    long: int
    short: int
    rows: int = ROWS

    @classmethod
    def of(cls, max_position: int) -> RowLengths:
        long = min(LONG, max_position)
        return cls(long, min(SHORT, long))

    def of_row(self, row: int) -> int:
        return self.long if row < LONG_ROWS else self.short

    def decode(self, rows: int, part: float) -> list[tuple[int, int, int]]:
        """Return ``rows`` decoding rows. Their context is the fraction ``part`` of the longest that all can have."""
        position = int(part * (self.of_row(rows - 1) - 1))
        return [(row, position, 1) for row in range(rows)]

    def prompt(self, row: int, count: int, part: float) -> tuple[int, int, int]:
        """Return a prompt row of ``count`` tokens that begins at the fraction ``part`` of the row's length."""
        count = min(count, self.of_row(row))
        return row, int(part * (self.of_row(row) - count)), count


def grid(lengths: RowLengths) -> list[SweepShape]:
    """Return the sweeps to fit to, about 90."""
    decoding = [lengths.decode(rows, part) for rows in DECODING for part in CONTEXTS]
    prompts = [[lengths.prompt(0, count, part)] for count in (16, 32, 48, 64, 96, 128, 192, 256) for part in (0.0, 0.5, 1.0)]
    several = [
        [lengths.prompt(row, count, 0.0) for row in range(rows)] for rows, count in ((2, 256), (2, 128), (4, 64), (8, 16))
    ]
    mixed = [
        [*lengths.decode(rows, 0.4), lengths.prompt(row, count, part)]
        for rows, row, part in ((2, 3, 0.0), (16, 47, 0.0), (40, 47, 0.0), (3, 3, 0.6))
        for count in (24, 96, 256)
    ]
    cut = [decoding[1], decoding[13], decoding[25], prompts[6], prompts[18], mixed[4], mixed[8]]
    return [
        *[SweepShape(tuple(batch)) for batch in (*decoding, *prompts, *several, *mixed)],
        *[SweepShape(tuple(batch), drawn=False) for batch in prompts[9::6]],
        *[SweepShape(tuple(batch), runs=runs) for batch in cut for runs in RUNS[1:]],
    ]


def held_out(lengths: RowLengths, count: int, seed: int) -> list[SweepShape]:
    """Return ``count`` random sweeps: decoding, a prompt, or both; a third of them in several runs."""
    draw, found = Random(seed), []
    for _ in range(count):
        batch: list[tuple[int, int, int]] = []
        kind = draw.choice(("decode", "prompt", "both"))
        if kind != "prompt":
            rows = draw.randint(1, ROWS - 1)
            batch += [(row, int(draw.random() * (lengths.of_row(row) - 1)), 1) for row in draw.sample(range(ROWS - 1), rows)]
        if kind != "decode":
            row = draw.choice((LONG_ROWS - 1, ROWS - 1)) if kind == "prompt" else ROWS - 1
            batch.append(lengths.prompt(row, draw.randint(8, 256), draw.random()))
        found.append(SweepShape(tuple(batch), draw.random() < 0.7, draw.choice(RUNS) if draw.random() < 0.5 else "whole"))
    return found

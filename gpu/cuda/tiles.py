"""Shapes of the kernels' tiles, and the tiles of a step. Standard library and numpy only.

An order of sums is a function of shapes alone: stretches of a weight, keys of a block and of a segment, rows of an
attention's tile. The tile of a product's rows and outputs follows the number of rows, and changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MULTIPROCESSORS = 132  # of an H100 and an H200: a constant of the numerics, not asked of the card


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows, outputs and columns of a product's tile, warps, stages."""

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Keys of a block of an attention, warps, stages."""

    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """The shapes that kernels are compiled for, for one type of model.

    ``products``: highest number of tokens (0: any), and the tile, in ascending order. ``attention``: largest head size, and
    the tile.
    """

    products: tuple[tuple[int, ProductTile], ...]
    attention: tuple[tuple[int, AttentionTile], ...]
    attention_rows: int  # tokens times heads of a group
    stretch: int = 1024  # columns of a stretch, of weights that are split
    segment: int = 256  # keys of a segment
    row_elements: int = 1024  # elements of a program over rows: of several tokens, or a block of one
    low_depth: int = 256  # columns of a block of low-rank terms
    low_outputs: int = 256
    vocabulary: int = 4096  # logits of a block

    def product(self, tokens: int) -> ProductTile:
        """Return the tile of a product with this many rows."""
        return next(tile for most, tile in self.products if not most or tokens <= most)

    def columns(self, width: int, outputs: int) -> int:
        """Return the columns of a stretch of a weight: a constant of its shape.

        A weight is split only where its outputs alone do not occupy the card twice.
        """
        few = -(-outputs // self.products[0][1].outputs) < 2 * MULTIPROCESSORS
        return self.stretch if few and width > self.stretch else width

    def attend(self, head_dim: int) -> AttentionTile:
        """Return the tile of an attention. Raises StopIteration beyond the largest head size."""
        return next(tile for most, tile in self.attention if head_dim <= most)

    def largest_head(self) -> int:
        """Return the largest head size that has a tile."""
        return self.attention[-1][0]


BFLOAT16 = Tiling(
    products=((64, ProductTile(64, 64, 128, 4, 4)), (0, ProductTile(128, 128, 64, 8, 3))),
    attention=((128, AttentionTile(64, 4, 3)), (256, AttentionTile(32, 8, 3))),
    attention_rows=64,
)
FLOAT32 = Tiling(
    products=((64, ProductTile(32, 64, 32, 4, 3)), (0, ProductTile(32, 64, 32, 4, 3))),
    attention=((64, AttentionTile(32, 4, 2)), (128, AttentionTile(16, 4, 2)), (256, AttentionTile(16, 8, 2))),
    attention_rows=16,
    low_depth=32,
    low_outputs=64,
)
# Small ones for interpreted tests, where a block costs about the same whatever its size: several blocks, stretches and
# segments of few tokens.
SMALL = Tiling(
    products=((16, ProductTile(16, 32, 32, 4, 1)), (0, ProductTile(64, 128, 64, 4, 1))),
    attention=((1024, AttentionTile(16, 4, 1)),),
    attention_rows=32,
    stretch=64,
    segment=32,
    row_elements=16384,
    low_depth=64,
    low_outputs=128,
    vocabulary=1024,
)


def attention_tiles(row_N: np.ndarray, start_N: np.ndarray, count_N: np.ndarray, each: int) -> np.ndarray:
    """Return int32 [tiles, 4]: table row, first position, tokens (at most ``each``), first token of the step.

    Batch rows follow each other in the step. A tile has tokens of one row.
    """
    offset_N = np.cumsum(count_N) - count_N
    tiles_N = -(-count_N // each)
    n = np.repeat(np.arange(len(row_N)), tiles_N)
    before = (np.arange(len(n)) - np.repeat(np.cumsum(tiles_N) - tiles_N, tiles_N)) * each
    columns = (row_N[n], start_N[n] + before, np.minimum(each, count_N[n] - before), offset_N[n] + before)
    return np.stack(columns, axis=1).astype(np.int32)


def delta_tiles(number_N: np.ndarray, count_N: np.ndarray, each: int) -> np.ndarray:
    """Return int32 [tiles, 3]: first token, tokens (at most ``each``), number.

    Of consecutive tokens with one number that is not 0.
    """
    tiles = []
    first = 0
    borders = [0, *(np.flatnonzero(np.diff(number_N)) + 1).tolist(), len(number_N)]
    for i, j in pairwise(borders):
        tokens = int(count_N[i:j].sum())
        if number_N[i]:
            tiles += [(first + k, min(each, tokens - k), int(number_N[i])) for k in range(0, tokens, each)]
        first += tokens
    return np.asarray(tiles, dtype=np.int32).reshape(-1, 3)

"""Shapes of the kernels' tiles, and the scratch that follows from them. Standard library only: the head asks, too.

An order of sums is a function of shapes alone: stretches of a weight, keys of a block and of a segment, rows of an
attention's tile. The tile of a product's rows and outputs follows the number of rows, and changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST = 16  # side of a block that a product takes
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

    def product_bytes(self, tokens: int, width: int, outputs: int) -> int:
        """Return the bytes that a product writes in any step of at most ``tokens`` tokens."""
        stretches = -(-width // self.columns(width, outputs))
        return 4 * outputs * max(tokens, stretches * min(tokens, self.products[0][0]))

    def segments(self, longest: int, group: int, window: int | None) -> int:
        """Return the most segments that a tile of an attention sees."""
        segments = -(-longest // self.segment)
        if window is None:
            return segments
        return min(segments, -(-(window + self.attention_rows // group) // self.segment) + 1)

    def attend_bytes(self, tiles: int, longest: int, group: int, kv_heads: int, head_dim: int, window: int | None) -> int:
        """Return the bytes of the parts that an attention writes; ``group``: heads to a KV head."""
        most = min(tiles, 2 * MULTIPROCESSORS // kv_heads + 1)
        each = self.attention_rows * (padded_head(head_dim) + 2)
        return 4 * most * kv_heads * self.segments(longest, group, window) * each

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


def power(n: int) -> int:
    """Return the power of two from n on: what Triton wants of a block."""
    return 1 << (n - 1).bit_length()


def padded_head(head_dim: int) -> int:
    """Return the elements of a head with its padding: as many as a product needs."""
    return max(SMALLEST, power(head_dim))

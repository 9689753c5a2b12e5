"""Columns of a plan: everything that the card is to know of it, packed for one upload.

A column has an offset from the moment it is added, and an address once the buffer is chosen that all of them go to. So a
sweep's work is queued when the plan is whole. Legend: N batch rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..sweep_columns import Ints, Rows
from .ops import DELTA_TILE, DeviceStep, Tiles
from .staging import Transfers
from .tables import CardTables

ALIGNMENT = 16  # bytes, of each column


class Region:
    """A part of a buffer on the card that grows by what is added. ``memory`` is there, uint8, once it is known."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.memory: torch.Tensor | None = None

    def room(self, nbytes: int) -> int:
        """Add room, and return its offset."""
        offset = self.nbytes
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offset

    def at(self, offset: int) -> int:
        """Return the address of what is at an offset."""
        assert self.memory is not None, "addresses are known when the plan is whole"
        return self.memory.data_ptr() + offset

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return the memory at an offset, uint8."""
        assert self.memory is not None, "addresses are known when the plan is whole"
        return self.memory[offset : offset + nbytes]


class PlanColumns(Region):
    """Arrays and bytes for the card, each at its offset."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[int, Any]] = []

    def add(self, column: Any) -> int:
        """Add an array, or bytes, and return its offset."""
        flat = column if isinstance(column, np.ndarray) else np.frombuffer(column, dtype=np.uint8)
        offset = self.room(flat.nbytes)
        if flat.nbytes:
            self._parts.append((offset, np.ascontiguousarray(flat).reshape(-1).view(np.uint8)))
        return offset

    def write(self, host_B: np.ndarray) -> None:
        """Write all columns into host memory, uint8 [nbytes]."""
        for offset, flat_B in self._parts:
            host_B[offset : offset + flat_B.size] = flat_B

    def step(self, at: Rows, tile_rows: int, groups: Sequence[int], delta: Sequence[int]) -> PlannedStep:
        """Add what a step over these rows needs; ``groups`` are the heads of a group of its run's attentions."""
        row_T = np.repeat(at.row_N, at.count_N).astype(np.int32)
        before_N = np.cumsum(at.count_N) - at.count_N
        position_T = (np.arange(row_T.size) + np.repeat(at.start_N - before_N, at.count_N)).astype(np.int32)
        tiles = {}
        for group in groups:
            made = attention_tiles(at.row_N, at.start_N, at.count_N, tile_rows // group)
            tiles[group] = self.add(made), len(made)
        number, changed = self.numbers(delta, at.count_N)
        return PlannedStep(
            row_T.size, self.add(row_T), self.add(position_T), int((at.start_N + at.count_N).max(initial=0)), tiles, number,
            changed,
        )  # fmt: skip

    def head(self, index_T: Ints, delta_T: Sequence[int]) -> PlannedHead:
        """Add what a head over single tokens needs, which ``index_T``, int32, names."""
        number, changed = self.numbers(delta_T, np.ones(len(index_T), dtype=np.int32))
        return PlannedHead(len(index_T), self.add(index_T), number, changed)

    def send(self, transfers: Transfers, name: str) -> None:
        """Queue the upload of all columns to a buffer of scratch. They have addresses now."""
        self.memory = transfers.upload(name, self.nbytes, self.write)

    def numbers(self, delta: Sequence[int], count_N: Ints) -> tuple[int, tuple[int, int]]:
        """Add the numbers of the tokens' deltas and their tiles (offset, count); offsets are -1 where no row has deltas."""
        if not any(delta):
            return -1, (-1, 0)
        number_N = np.asarray(delta, dtype=np.int32)
        made = delta_tiles(number_N, count_N, DELTA_TILE)
        return self.add(np.repeat(number_N, count_N)), (self.add(made), len(made))


@dataclass(frozen=True, slots=True)
class PlannedHead:
    """A head over single tokens whose columns are at offsets of a plan's."""

    tokens: int
    index: int
    number: int  # -1: no row has deltas
    changed: tuple[int, int]

    def on(self, columns: Region) -> tuple[int, DeviceStep]:
        """Return the address of the index, and the step."""
        return columns.at(self.index), head_step(self.tokens, **_deltas(columns, self.number, self.changed))


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step whose columns are at offsets of a plan's."""

    tokens: int
    row: int
    position: int
    longest: int
    tiles: dict[int, tuple[int, int]]  # by heads of a group
    number: int  # -1: no row has deltas
    changed: tuple[int, int]

    def on(self, columns: Region, tables: CardTables) -> DeviceStep:
        """Return the step as operations take it."""
        at = columns.at
        return DeviceStep(
            tokens=self.tokens,
            row_T=at(self.row),
            position_T=at(self.position),
            table=tables.tokens,
            table_stride=tables.token_stride,
            slots=tables.slots,
            row_stride=tables.row_stride,
            layer_stride=tables.layer_stride,
            longest=self.longest,
            tiles={group: Tiles(at(place), count) for group, (place, count) in self.tiles.items()},
            **_deltas(columns, self.number, self.changed),
        )


def head_step(tokens: int, number_T: int = 0, changed: int = 0, changes: int = 0) -> DeviceStep:
    """Return the step of a head, which reads neither tables nor positions."""
    return DeviceStep(tokens, 0, 0, 0, 0, 0, 0, 0, 0, {}, number_T, changed, changes)


def _deltas(columns: Region, number: int, changed: tuple[int, int]) -> dict[str, int]:
    if number < 0:
        return {}
    return {"number_T": columns.at(number), "changed": columns.at(changed[0]), "changes": changed[1]}


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

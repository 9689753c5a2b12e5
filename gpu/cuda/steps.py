"""Steps of the CUDA back ends: the columns of a batch as one upload, and the addresses at which operations find them.

Tokens of a batch row are consecutive. Legend: N batch rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from ..backend import Batch
from .ops import DELTA_TILE, DeviceStep, Tiles
from .scratch import Scratch
from .staging import StagingRing
from .streams import DeviceStream
from .tables import EDITS, TableCopies
from .tiles import attention_tiles, delta_tiles

PLAN, EDIT = "plan", "edits"
ALIGNMENT = 16  # bytes, of each column in an upload
COLUMNS = 3 + 4 + 3  # int32 for each token: row, position, number; a tile; a change


class StepColumns:
    """Uploads of one back end, on its stream."""

    def __init__(self, scratch: Scratch, ring: StagingRing, stream: DeviceStream, tile_rows: int) -> None:
        self._scratch, self._tile_rows = scratch, tile_rows
        self._ring, self._stream = ring, stream

    def reserve(self, tokens: int, kinds: int) -> None:
        """Have room for steps of this many tokens, in runs with attentions of this many kinds of groups."""
        self._scratch.need(PLAN, 4 * tokens * (COLUMNS + 4 * kinds) + (4 + kinds) * ALIGNMENT)
        self._scratch.need(EDIT, 12 * EDITS + ALIGNMENT)

    def make(self, batch: Batch, groups: Sequence[int], tables: TableCopies) -> DeviceStep:
        """Queue the upload of a batch's columns. ``groups`` are the heads of a group of the run's attentions."""
        row_T = np.repeat(batch.row_N, batch.count_N)
        offset_N = np.cumsum(batch.count_N) - batch.count_N
        position_T = np.arange(row_T.size) + np.repeat(batch.start_N - offset_N, batch.count_N)
        columns = [row_T.astype(np.int32), position_T.astype(np.int32)]
        columns += [attention_tiles(batch.row_N, batch.start_N, batch.count_N, self._tile_rows // group) for group in groups]
        changes = 0
        if batch.delta_N is not None:
            changed = delta_tiles(batch.delta_N, batch.count_N, DELTA_TILE)
            columns += [np.repeat(batch.delta_N, batch.count_N).astype(np.int32), changed]
            changes = len(changed)
        places = self.upload(PLAN, columns)
        tiles = {
            group: Tiles(place, len(column))
            for group, place, column in zip(groups, places[2:], columns[2 : 2 + len(groups)], strict=False)
        }
        step = DeviceStep(
            row_T.size,
            places[0],
            places[1],
            tables.tokens,
            tables.token_stride,
            tables.slots,
            tables.row_stride,
            tables.layer_stride,
            int((batch.start_N + batch.count_N).max(initial=0)),
            tiles,
        )
        return replace(step, number_T=places[-2], changed=places[-1], changes=changes) if batch.delta_N is not None else step

    def edit(self, index_E: np.ndarray, value_E: np.ndarray) -> tuple[int, int]:
        """Queue the upload of table edits. Return the addresses of both columns."""
        index, value = self.upload(EDIT, [index_E, value_E])
        return index, value

    def upload(self, name: str, columns: Sequence[np.ndarray]) -> list[int]:
        """Queue one copy of all columns (int32, int64) into a buffer of the scratch. Return their addresses there."""
        begins, end = [], 0
        for column in columns:
            begins.append(end)
            end += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
        with self._staged(name, end) as host:
            for begin, column in zip(begins, columns, strict=True):
                host[begin : begin + column.nbytes] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        return [self._scratch[name] + begin for begin in begins]

    def send(self, name: str, tensor: torch.Tensor) -> None:
        """Queue a copy of a contiguous host tensor to the beginning of a buffer of the scratch."""
        with self._staged(name, tensor.nbytes) as host:
            host[:] = tensor.view(torch.uint8).numpy().reshape(-1)

    @contextmanager
    def _staged(self, name: str, nbytes: int) -> Iterator[np.ndarray]:
        """Yield host memory whose content is then copied to a buffer of the scratch."""
        with self._ring.buffer(self._stream, nbytes) as buffer:
            yield buffer.numpy()
            target = self._scratch.tensor(name, nbytes)
            self._stream.launch(lambda: target.copy_(buffer, non_blocking=True))

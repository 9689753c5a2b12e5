"""Operations of the CUDA back end by Triton: picks tiles, launches kernels, computes nothing itself.

Launches go to the current stream of the current device, or run at once where Triton interprets. What is a ``constexpr`` of
a kernel depends on shapes of a model and its type, so that a kernel is compiled once for each of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from ..errors import BackendError
from ..model.config import AttentionConfig
from .kernels import attention, copies, deltas, draw, products, rows, sampler
from .ops import (
    ACTIVATIONS,
    BEST,
    DELTA_TILE,
    RANK_UNIT,
    Choices,
    DeviceStep,
    Finish,
    Logprobs,
    Norm,
    Slots,
    Sum,
    Terms,
    Weight,
)
from .tiles import BFLOAT16, FLOAT32, MULTIPROCESSORS, Tiling, padded_head, power

TYPES: dict[torch.dtype, tuple[Any, Tiling]] = {
    torch.float32: (tl.float32, FLOAT32),
    torch.bfloat16: (tl.bfloat16, BFLOAT16),
}
KINDS = {"rms": 1, "layer": 2}
LARGEST_ROW = 16384  # elements of a row that one program holds
COPIED = 2048  # words of a program that copies slots
EDITED = 256
DRAFTED = 32  # drafts of a block
NO_SUM = Sum(0, 0, 0)


class TritonOps:
    """The operations (``ops.py``) of one model's type."""

    def __init__(self, dtype: torch.dtype, tiling: Tiling | None = None) -> None:
        self.dtype = dtype
        self._type, own = TYPES[dtype]
        self.tiling = tiling or own
        self.tile_rows = self.tiling.attention_rows
        self.name = f"triton-{triton.__version__}-{_digest(self.tiling)}"

    # products

    def product_bytes(self, tokens: int, width: int, outputs: int) -> int:
        return self.tiling.product_bytes(tokens, width, outputs)

    def product(self, x: int, weight: Weight, out: int, tokens: int) -> Sum:
        tile = self.tiling.product(tokens)
        width = weight.width
        outputs = weight.outputs
        columns = self.tiling.columns(width, outputs)
        # few rows: each stretch has a program; their reader adds them
        split = -(-width // columns) if tokens <= self.tiling.products[0][0] else 1
        (w0, q0), (w1, q1), (w2, q2) = (*weight.parts, (0, 0), (0, 0))[:3]
        grid = (-(-tokens // tile.rows), sum(-(-q // tile.outputs) for q in (q0, q1, q2)), split)
        products.linear[grid](
            x, w0, w1, w2, out, tokens, Q0=q0, Q1=q1, Q2=q2, W=width, M=tile.rows, N=tile.outputs, KB=tile.depth,
            KS=columns,
            SPLIT=split if split > 1 else 0, STAGES=tile.stages, DT=self._type, num_warps=tile.warps,
        )  # fmt: skip
        return Sum(out, split, outputs)

    # rows

    def _block(self, width: int) -> tuple[int, int]:
        """Return the columns and the tokens of a program in which a row may be cut."""
        columns = min(power(width), self.tiling.row_elements)
        return columns, max(1, min(16, self.tiling.row_elements // columns))

    def _row(self, width: int) -> tuple[int, int, int]:
        """Return the columns, the tokens and the warps of a program that needs whole rows."""
        if width > LARGEST_ROW:
            raise BackendError(f"rows of {width} elements are not supported on CUDA; {LARGEST_ROW} are the most")
        columns = power(width)
        tokens = max(1, min(16, self.tiling.row_elements // columns))
        return columns, tokens, max(1, min(16, columns * tokens // 512))

    def _grid(self, tokens: int, width: int) -> tuple[tuple[int, int], int, int]:
        columns, together = self._block(width)
        return (-(-tokens // together), -(-width // columns)), columns, together

    def embed(self, step: DeviceStep, weight: int, width: int, multiplier: float, out: int) -> None:
        grid, columns, together = self._grid(step.tokens, width)
        rows.embed[grid](
            step.table, step.table_stride, step.row_T, step.position_T, weight, out, step.tokens, multiplier, W=width,
            CB=columns, TB=together, DT=self._type,
        )  # fmt: skip

    def fill(self, step: DeviceStep, virtual: int, width: int, out: int) -> None:
        if step.number_T:
            grid, columns, together = self._grid(step.tokens, width)
            rows.fill[grid](
                virtual, step.number_T, step.row_T, step.position_T, out, step.tokens, W=width, CB=columns,
                TB=together,
                DT=self._type,
            )  # fmt: skip

    def normalise(self, x: int, norm: Norm, width: int, out: int, tokens: int) -> None:
        self._finish(0, tokens, x, width, None, norm, out)

    def finish(self, step: DeviceStep, hidden: int, width: int, how: Finish, norm: Norm | None = None, out: int = 0) -> None:
        self._finish(step.number_T, step.tokens, hidden, width, how, norm, out)

    def _finish(
        self, number: int, tokens: int, hidden: int, width: int, how: Finish | None, norm: Norm | None, out: int
    ) -> None:
        columns, together, warps = self._row(width)
        term = how.term if how else NO_SUM
        side = how.side if how and how.side else NO_SUM
        post = how.post if how else None
        multiplier = how.multiplier if how else 1.0
        (bias,), (side_bias,) = _biases(term, 1), _biases(side, 1)
        rows.finish[(-(-tokens // together),)](
            hidden, tokens, number, term.address, bias, term.delta, side.address, side_bias, side.delta,
            post.weight if post else 0, post.bias if post else 0, norm.weight if norm else 0,
            norm.bias if norm else 0, out,
            multiplier, post.config.eps if post else 0.0, norm.config.eps if norm else 0.0, W=width, CB=columns,
            TB=together,
            Z=term.parts, BIAS=bias != 0, DELTA=_changed(number, term), SIDE=side.parts, SIDE_BIAS=side_bias != 0,
            SIDE_DELTA=_changed(number, side), POST=_kind(post), POST_OFFSET=_offset(post), SCALED=multiplier != 1.0,
            NORM=_kind(norm), OFFSET=_offset(norm), DT=self._type, num_warps=warps,
        )  # fmt: skip

    def heads(
        self, step: DeviceStep, qkv: Sum, config: AttentionConfig, norms: Sequence[Norm], rotary: tuple[int, int],
        q: int, kv: Slots,
        layer: int, virtual: int = 0,
    ) -> None:  # fmt: skip
        size = config.head_dim
        if config.qk_norm == "whole":
            qkv = self._norm_whole(step, qkv, config, norms)
        per_head = norms if config.qk_norm == "head" else ()
        columns, together, warps = self._row(size)
        bias = _biases(qkv, 3)
        rows.heads[(-(-step.tokens // together), config.heads + 2 * config.kv_heads)](
            qkv.address, *bias, qkv.delta, step.number_T, *([norm.weight for norm in per_head] or (0, 0)), *rotary,
            q, step.row_T,
            step.position_T, step.slots, kv.address, layer, step.row_stride, step.layer_stride, virtual, step.tokens,
            config.norm.eps, H=config.heads, K=config.kv_heads, E=size, EB=columns, TB=together,
            TURNED=config.rope.dim or size,
            NEIGHBOURS=config.rope.interleaved, NORM=bool(per_head), OFFSET=float(config.norm.offset), Z=qkv.parts,
            BIAS=bias[0] != 0, DELTA=_changed(step.number_T, qkv), VIRTUAL=bool(virtual and step.number_T),
            SLOT=kv.slot_bytes // self.dtype.itemsize, PAGE=kv.page, DT=self._type, num_warps=warps,
        )  # fmt: skip

    def _norm_whole(self, step: DeviceStep, qkv: Sum, config: AttentionConfig, norms: Sequence[Norm]) -> Sum:
        """Norm queries and keys over all heads, in the sum's first part, which is all that is left of it."""
        inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        columns, together, warps = self._row(max(inner, kv))
        bias = _biases(qkv, 3)
        rows.norm_whole[(-(-step.tokens // together), 3)](
            qkv.address, *bias, qkv.delta, step.number_T, *[norm.weight for norm in norms], step.tokens,
            norms[0].config.eps, QW=inner,
            KW=kv, CB=columns, TB=together, Z=qkv.parts, BIAS=bias[0] != 0, DELTA=_changed(step.number_T, qkv),
            OFFSET=float(norms[0].config.offset), DT=self._type, num_warps=warps,
        )  # fmt: skip
        return Sum(qkv.address, 1, qkv.outputs)

    def activate(self, step: DeviceStep, inner: Sum, activation: str, gated: bool, out: int) -> None:
        width = inner.outputs // 2 if gated else inner.outputs
        grid, columns, together = self._grid(step.tokens, width)
        bias = _biases(inner, 2 if gated else 1)
        rows.activate[grid](
            inner.address, bias[0], bias[-1], inner.delta, step.number_T, out, step.tokens, INNER=width, CB=columns,
            TB=together,
            CODE=ACTIVATIONS[activation], GATED=gated, Z=inner.parts, BIAS=bias[0] != 0,
            DELTA=_changed(step.number_T, inner),
            DT=self._type,
        )  # fmt: skip

    def logits(self, step: DeviceStep, term: Sum, divisor: float, softcap: float, out: int) -> None:
        grid, columns, together = self._grid(step.tokens, term.outputs)
        rows.logits[grid](
            term.address, term.delta, step.number_T, out, step.tokens, divisor, softcap, V=term.outputs, CB=columns,
            TB=together,
            Z=term.parts, DELTA=_changed(step.number_T, term), DIVIDED=divisor != 1.0, CAPPED=softcap != 0.0,
        )  # fmt: skip

    # attention

    def _splits(self, tiles: int, longest: int, config: AttentionConfig) -> int:
        """Return the segments with a program of their own: none where the tiles alone occupy the card."""
        if tiles * config.kv_heads >= 2 * MULTIPROCESSORS:
            return 1
        return self.tiling.segments(longest, config.heads // config.kv_heads, config.window)

    def attend_bytes(self, tiles: int, longest: int, config: AttentionConfig) -> int:
        group = config.heads // config.kv_heads
        if config.head_dim > self.tiling.largest_head() or group > self.tile_rows:
            raise BackendError(
                f"attention with heads of {config.head_dim} and {group} of them to a KV head is not supported on CUDA; "
                f"{self.tiling.largest_head()} and {self.tile_rows} are the most"
            )
        return self.tiling.attend_bytes(tiles, longest, group, config.kv_heads, config.head_dim, config.window)

    def attend(
        self, step: DeviceStep, q: int, config: AttentionConfig, kv: Slots, layer: int, out: int, scratch: int
    ) -> None:
        group = config.heads // config.kv_heads
        size = config.head_dim
        tile = self.tiling.attend(config.head_dim)
        tiles = step.tiles[group]
        splits = self._splits(tiles.count, step.longest, config)
        shape: dict[str, Any] = {
            "WINDOW": config.window or 0, "KV": config.kv_heads, "G": group, "E": size, "EB": padded_head(config.head_dim),
            "M": self.tile_rows,
            "SEG": self.tiling.segment, "DT": self._type, "num_warps": tile.warps,
        }  # fmt: skip
        attention.attend[(tiles.count, config.kv_heads, splits)](
            q, out, tiles.address, step.slots, kv.address, scratch, config.scale, layer, step.row_stride,
            step.layer_stride, splits,
            SOFTCAP=float(config.softcap), SLOT=kv.slot_bytes // self.dtype.itemsize, PAGE=kv.page, BK=tile.keys,
            STAGES=tile.stages, SPLIT=splits > 1, **shape,
        )  # fmt: skip
        if splits > 1:
            attention.join_parts[(tiles.count, config.kv_heads)](scratch, out, tiles.address, splits, **shape)

    # deltas

    def shrink(self, step: DeviceStep, x: int, width: int, terms: Terms, low: int) -> None:
        if step.changes and terms.columns:
            deltas.shrink[(step.changes, terms.roles, terms.columns // RANK_UNIT)](
                x, low, step.changed, terms.address, terms.columns, W=width, RB=RANK_UNIT, M=DELTA_TILE,
                KB=self.tiling.low_depth, STAGES=3, DT=self._type, num_warps=4,
            )  # fmt: skip

    def expand(self, step: DeviceStep, low: int, terms: Terms, outputs: int, delta: int) -> None:
        if step.changes:
            each = self.tiling.low_outputs
            deltas.expand[(step.changes, terms.roles, -(-terms.rows // each))](
                low, delta, step.changed, terms.address, terms.columns, Q=outputs, RB=RANK_UNIT, M=DELTA_TILE,
                N=each,
                DT=self._type, num_warps=4,
            )  # fmt: skip

    def adapt(self, step: DeviceStep, term: Sum, hidden: int, reads: int, x: int, wide: int) -> None:
        grid, columns, together = self._grid(step.tokens, term.outputs)
        (bias,) = _biases(term, 1)
        deltas.adapt[grid](
            term.address, bias, term.delta, step.number_T, hidden, reads, x, wide, step.tokens, W=term.outputs,
            CB=columns,
            TB=together, Z=term.parts, BIAS=bias != 0, DELTA=_changed(step.number_T, term), DT=self._type,
        )  # fmt: skip

    # tokens

    def draw(self, logits: int, rows: int, vocabulary: int, key: int, temperature: int, token: int) -> None:
        draw.draw[(rows,)](logits, key, temperature, token, V=vocabulary, CB=self._logits(vocabulary), num_warps=8)

    def choose(self, logits: int, vocabulary: int, choices: Choices, token: int) -> None:
        c, block = choices, self._logits(vocabulary)
        shape: dict[str, Any] = {"V": vocabulary, "CB": block, "num_warps": 8, "enable_fp_fusion": False}
        grid = (c.rows, -(-vocabulary // block))
        sampler.weigh[grid](logits, c.ints, c.scores, c.counts, PENALISED=c.penalised, **shape)
        if c.listed:
            blocks = -(-c.listed // EDITED)
            sampler.amend[(c.rows, blocks)](logits, c.ints, c.ids, c.values, c.scores, **shape | {"CB": EDITED})
        if c.penalised:
            sampler.count[(c.rows,)](c.ints, c.table, c.table_stride, c.counts, **shape)
            sampler.penalise[grid](c.ints, c.floats, c.counts, c.scores, **shape)
        sampler.choose[(c.rows,)](logits, c.ints, c.floats, c.key, c.scores, token, **shape)

    def logprobs(self, logits: int, vocabulary: int, rows: int, index: int, best: int, token: int, out: Logprobs) -> None:
        sampler.logprobs[(rows,)](
            logits, index, token, best, out.numbers, out.ranks, V=vocabulary, CB=self._logits(vocabulary), MOST=BEST,
            num_warps=8,
        )  # fmt: skip

    def _logits(self, vocabulary: int) -> int:
        return min(self.tiling.vocabulary, power(vocabulary))

    def keep(self, table: int, table_stride: int, rows: int, drawn: int, token: int, standing: int) -> None:
        copies.keep[(rows,)](table, table_stride, drawn, token, standing, CB=DRAFTED, num_warps=1)

    # copies

    def gather(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        self._copy_rows(source, index, out, rows, width, False)

    def scatter(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        self._copy_rows(source, index, out, rows, width, True)

    def _copy_rows(self, source: int, index: int, out: int, rows: int, width: int, scatter: bool) -> None:
        grid, columns, together = self._grid(rows, width)
        copies.copy_rows[grid](source, index, out, rows, W=width, CB=columns, TB=together, SCATTER=scatter, DT=self._type)

    def put_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        self._copy_hidden(step, hidden, width, pages, column, True)

    def take_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        self._copy_hidden(step, hidden, width, pages, column, False)

    def _copy_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int, put: bool) -> None:
        grid, columns, together = self._grid(step.tokens, width)
        copies.copy_hidden[grid](
            hidden, step.row_T, step.position_T, step.slots, pages.address, column, step.row_stride,
            step.layer_stride,
            step.tokens, W=width, CB=columns, TB=together, SLOT=pages.slot_bytes // self.dtype.itemsize,
            PAGE=pages.page, PUT=put,
            DT=self._type,
        )  # fmt: skip

    def copy_slots(
        self, source: int, source_slots: int, target: int, target_slots: int, count: int, slot_bytes: int
    ) -> None:
        words = slot_bytes // 4
        copies.copy_slots[(count, -(-words // COPIED))](
            source, source_slots, target, target_slots, WORDS=words, CB=COPIED, FROM=source_slots != 0, TO=target_slots != 0
        )

    def edit(self, target: int, index: int, value: int, count: int) -> None:
        copies.edit[(-(-count // EDITED),)](target, index, value, count, CB=EDITED)


def _biases(sum: Sum, count: int) -> tuple[int, ...]:
    """Return the addresses of a sum's biases, 0 without."""
    return tuple(address for address, _ in sum.biases) or (0,) * count


def _changed(number: int, sum: Sum) -> bool:
    return bool(number and sum.delta)


def _kind(norm: Norm | None) -> int:
    return KINDS[norm.config.kind] if norm else 0


def _offset(norm: Norm | None) -> float:
    return float(norm.config.offset) if norm else 0.0


def _digest(tiling: Tiling) -> str:
    """Return a hash of what decides bits: the kernels' sources and the tiles."""
    digest = hashlib.blake2b(repr(tiling).encode(), digest_size=6)
    for path in sorted((Path(__file__).parent / "kernels").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

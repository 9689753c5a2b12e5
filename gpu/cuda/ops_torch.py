"""Operations of the CUDA back end by torch, on host memory: the twin of the kernels for tests without a card.

Every row is computed alone, from copies that begin at aligned addresses, so that its bits depend on nothing else: libraries
sum a row in another order by its place in a matrix, and compute the end of an array by other code than its middle. Work runs
when the stream that it is launched on comes to it. Legend: as in ``ops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from ...policies.plan.sweep_plan import NO_SLOT
from ..model.activations import BOTTLENECKS, soft_cap
from ..model.config import AttentionConfig
from ..model.rotary import rotate
from . import draws_torch, ops
from .host_memory import floats, ints, longs, view
from .ops import FIELDS, Choices, DeviceStep, Finish, Logprobs, Norm, Slots, Sum, Terms, Weight

Launch = Callable[[Callable[[], object]], None]
TILE_ROWS = 1024  # of a tile, which nothing here is computed by
NAMES = {code: name for name, code in ops.ACTIVATIONS.items()}


class TorchOps:
    """``Ops`` on host memory (see the module). ``launch`` queues work."""

    def __init__(self, dtype: torch.dtype, launch: Launch) -> None:
        self.name = "torch"
        self.tile_rows = TILE_ROWS
        self.dtype = dtype
        self._launch = launch

    def product_bytes(self, tokens: int, width: int, outputs: int) -> int:
        return 4 * tokens * outputs

    def product(self, x: int, weight: Weight, out: int, tokens: int) -> Sum:
        def work() -> None:
            x_TW, out_TQ = self._model(x, tokens, weight.width), floats(out, tokens, weight.outputs)
            first = 0
            for address, rows in weight.parts:
                matrix_QW = self._model(address, rows, weight.width).float()
                for t in range(tokens):
                    out_TQ[t, first : first + rows] = torch.mv(matrix_QW, _alone(x_TW[t]))
                first += rows

        self._launch(work)
        return Sum(out, 1, weight.outputs)

    def embed(self, step: DeviceStep, weight: int, width: int, multiplier: float, out: int) -> None:
        def work() -> None:
            row_T, position_T = self._places(step)
            out_TD = self._model(out, step.tokens, width)
            for t in np.flatnonzero(row_T >= 0).tolist():
                token = int(ints(step.table + 4 * (int(row_T[t]) * step.table_stride + int(position_T[t])), 1)[0])
                if token < 0:
                    out_TD[t] = 0.0
                else:
                    source_D = self._model(weight + token * width * self.dtype.itemsize, width)
                    out_TD[t] = source_D * multiplier if multiplier != 1.0 else source_D

        self._launch(work)

    def fill(self, step: DeviceStep, virtual: int, width: int, out: int) -> None:
        def work() -> None:
            out_TD = self._model(out, step.tokens, width)
            for t, row_D in self._virtual(step, virtual, width).items():
                out_TD[t] = row_D

        self._launch(work)

    def normalise(self, x: int, norm: Norm, width: int, out: int, tokens: int) -> None:
        def work() -> None:
            x_TD, out_TD = self._model(x, tokens, width), self._model(out, tokens, width)
            for t in range(tokens):
                out_TD[t] = self._normed(_alone(x_TD[t]), norm)

        self._launch(work)

    def finish(self, step: DeviceStep, hidden: int, width: int, how: Finish, norm: Norm | None = None, out: int = 0) -> None:
        def work() -> None:
            hidden_TD = self._model(hidden, step.tokens, width)
            term_TD = self._read(step, how.term)
            side_TD = None if how.side is None else self._read(step, how.side)
            for t in range(step.tokens):
                term_D = term_TD[t].clone()
                if how.post is not None:
                    term_D = self._normed(term_D, how.post)
                if how.multiplier != 1.0:
                    term_D = term_D * how.multiplier
                if side_TD is not None:
                    term_D = side_TD[t] + term_D
                hidden_TD[t] = term_D + hidden_TD[t].float()
                if norm is not None:
                    self._model(out, step.tokens, width)[t] = self._normed(_alone(hidden_TD[t]), norm)

        self._launch(work)

    def heads(
        self, step: DeviceStep, qkv: Sum, config: AttentionConfig, norms: Sequence[Norm], rotary: tuple[int, int], q: int,
        kv: Slots, layer: int, virtual: int = 0,
    ) -> None:  # fmt: skip
        def work() -> None:
            heads, narrow = config.heads, config.kv_heads
            size = config.head_dim
            row_T, position_T = self._places(step)
            sum_TQ = self._read(step, qkv)
            q_THE = self._model(q, step.tokens, heads, size)
            half = (config.rope.dim or size) // 2
            filled = self._virtual(step, virtual, 2 * narrow * size)
            for t in np.flatnonzero(row_T >= 0).tolist():
                position = int(position_T[t])
                parts = [part.clone() for part in torch.split(sum_TQ[t], [heads * size, narrow * size, narrow * size])]
                if norms:
                    whole = config.qk_norm == "whole"
                    for i in range(2):
                        rows = parts[i].view(1 if whole else -1, parts[i].numel() if whole else size)
                        parts[i] = torch.stack([self._normed(row.clone(), norms[i]) for row in rows])
                table = tuple(floats(address + 4 * position * half, 1, half) for address in rotary)
                turned = [rotate(part.view(1, -1, size), (table[0], table[1]), config.rope)[0] for part in parts[:2]]
                q_THE[t] = turned[0]
                keys_KE, values_KE = self._slot(step, kv, narrow, size, int(row_T[t]), layer, position)
                keys_KE[:], values_KE[:] = turned[1], parts[2].view(-1, size)
                if t in filled:
                    keys_KE[:], values_KE[:] = filled[t].view(2, narrow, size)

        self._launch(work)

    def attend_bytes(self, tiles: int, longest: int, config: AttentionConfig) -> int:
        return 0

    def attend(
        self, step: DeviceStep, q: int, config: AttentionConfig, kv: Slots, layer: int, out: int, scratch: int
    ) -> None:
        def work() -> None:
            size, narrow = config.head_dim, config.kv_heads
            page = kv.page
            row_T, position_T = self._places(step)
            q_THE = self._model(q, step.tokens, config.heads, size)
            out_THE = self._model(out, step.tokens, config.heads, size)
            for row in np.unique(row_T[row_T >= 0]).tolist():
                mine = np.flatnonzero(row_T == row)
                low_T = np.maximum(position_T[mine] - (config.window or 1 << 30) + 1, 0)
                first = int(low_T.min()) // page  # pages before it may be gone
                slot_P = ints(
                    step.slots + 4 * (row * step.row_stride + layer * step.layer_stride + first),
                    int(position_T[mine].max()) // page + 1 - first,
                )
                pages = [self._model(kv.address + int(slot) * kv.slot_bytes, 2, narrow, page, size) for slot in slot_P]
                kv_2KSE = torch.cat(pages, 2)
                for t, low in zip(mine.tolist(), low_T.tolist(), strict=True):
                    span = slice(low - first * page, int(position_T[t]) + 1 - first * page)
                    out_THE[t] = self._attended(q_THE[t], kv_2KSE[:, :, span], config)

        self._launch(work)

    def _attended(self, q_HE: torch.Tensor, kv_2KSE: torch.Tensor, config: AttentionConfig) -> torch.Tensor:
        """Return the values that one token's queries find. Weights are rounded, being inputs of a product."""
        keys_KSE, values_KSE = _alone(kv_2KSE[0]), _alone(kv_2KSE[1])
        q_KGE = _alone(q_HE).view(config.kv_heads, -1, config.head_dim)
        score_KGS = soft_cap(q_KGE @ keys_KSE.transpose(1, 2) * config.scale, config.softcap)
        weight_KGS = torch.exp(score_KGS - score_KGS.amax(-1, keepdim=True))
        sum_KGE = weight_KGS.to(self.dtype).float() @ values_KSE
        return (sum_KGE / weight_KGS.sum(-1, keepdim=True)).view(config.heads, config.head_dim)

    def activate(self, step: DeviceStep, inner: Sum, activation: str, gated: bool, out: int) -> None:
        def work() -> None:
            inner_TQ, act = self._read(step, inner), BOTTLENECKS[activation]
            width = inner.outputs // 2 if gated else inner.outputs
            out_TI = self._model(out, step.tokens, width)
            for t in range(step.tokens):
                acted_I = act(_alone(inner_TQ[t, :width]))
                out_TI[t] = acted_I * inner_TQ[t, width:] if gated else acted_I

        self._launch(work)

    def shrink(self, step: DeviceStep, x: int, width: int, terms: Terms, low: int) -> None:
        def work() -> None:
            x_TW, low_TR = self._model(x, step.tokens, width), self._model(low, step.tokens, terms.columns)
            for t, records in self._records(step, terms):
                for record in records:
                    if rank := int(record[ops.RANK]):
                        low_R = torch.mv(self._model(int(record[ops.A]), rank, width).float(), _alone(x_TW[t]))
                        if record[ops.LOW_BIAS]:
                            low_R = low_R + floats(int(record[ops.LOW_BIAS]), rank)
                        if name := NAMES[int(record[ops.ACTIVATION])]:
                            low_R = BOTTLENECKS[name](low_R)
                        low_TR[t, int(record[ops.COLUMN]) :][:rank] = low_R

        self._launch(work)

    def expand(self, step: DeviceStep, low: int, terms: Terms, outputs: int, delta: int) -> None:
        def work() -> None:
            low_TR, delta_TQ = self._model(low, step.tokens, terms.columns), floats(delta, step.tokens, outputs)
            for t, records in self._records(step, terms):
                delta_TQ[t] = -0.0
                for record in records:
                    rows, rank = int(record[ops.ROWS]), int(record[ops.RANK])
                    part_Q = delta_TQ[t, int(record[ops.FIRST]) :][:rows]
                    if rank:
                        low_R = _alone(low_TR[t, int(record[ops.COLUMN]) :][:rank])
                        scale = float(np.asarray(record[ops.SCALE]).view(np.float64))
                        part_Q += torch.mv(self._model(int(record[ops.B]), rows, rank).float(), low_R) * scale
                    if record[ops.SHIFT]:
                        part_Q += floats(int(record[ops.SHIFT]), rows)

        self._launch(work)

    def adapt(self, step: DeviceStep, term: Sum, hidden: int, reads: int, x: int, wide: int) -> None:
        def work() -> None:
            term_TD, width = self._read(step, term), term.outputs
            floats(wide, step.tokens, width)[:] = term_TD
            hidden_TD, x_TD = self._model(hidden, step.tokens, width), self._model(x, step.tokens, width)
            for t in self._changed(step):
                code = int(ints(reads + 4 * int(ints(step.number_T, step.tokens)[t]), 1)[0])
                wide_D = hidden_TD[t].float()
                x_TD[t] = (term_TD[t], term_TD[t] + wide_D, wide_D)[code]

        self._launch(work)

    def logits(self, step: DeviceStep, term: Sum, divisor: float, softcap: float, out: int) -> None:
        def work() -> None:
            sum_TV, out_TV = self._read(step, term), floats(out, step.tokens, term.outputs)
            for t in range(step.tokens):
                out_TV[t] = soft_cap(sum_TV[t].clone() / divisor if divisor != 1.0 else sum_TV[t].clone(), softcap)

        self._launch(work)

    def draw(self, logits: int, rows: int, vocabulary: int, key: int, temperature: int, token: int) -> None:
        self._launch(lambda: draws_torch.draw(logits, rows, vocabulary, key, temperature, token))

    def choose(self, logits: int, vocabulary: int, choices: Choices, token: int) -> None:
        self._launch(lambda: draws_torch.choose(logits, vocabulary, choices, token))

    def logprobs(self, logits: int, vocabulary: int, rows: int, index: int, best: int, token: int, out: Logprobs) -> None:
        self._launch(lambda: draws_torch.logprobs(logits, vocabulary, rows, index, best, token, out))

    def keep(self, table: int, table_stride: int, rows: int, drawn: int, token: int, standing: int) -> None:
        self._launch(lambda: draws_torch.keep(table, table_stride, rows, drawn, token, standing))

    def gather(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        def work() -> None:
            for i, place in enumerate(ints(index, rows).tolist()):
                if place >= 0:
                    self._model(out, rows, width)[i] = self._model(source + place * width * self.dtype.itemsize, width)

        self._launch(work)

    def scatter(self, source: int, index: int, out: int, rows: int, width: int) -> None:
        def work() -> None:
            for i, place in enumerate(ints(index, rows).tolist()):
                if place >= 0:
                    self._model(out + place * width * self.dtype.itemsize, width)[:] = self._model(source, rows, width)[i]

        self._launch(work)

    def put_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        def work() -> None:
            for hidden_D, kept_D in self._kept(step, hidden, width, pages, column):
                kept_D[:] = hidden_D

        self._launch(work)

    def take_hidden(self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int) -> None:
        def work() -> None:
            for hidden_D, kept_D in self._kept(step, hidden, width, pages, column):
                hidden_D[:] = kept_D

        self._launch(work)

    def copy_slots(
        self, source: int, source_slots: int, target: int, target_slots: int, count: int, slot_bytes: int
    ) -> None:
        def work() -> None:
            from_N = ints(source_slots, count).tolist() if source_slots else range(count)
            to_N = ints(target_slots, count).tolist() if target_slots else range(count)
            for one, other in zip(from_N, to_N, strict=True):
                into = view(target + other * slot_bytes, (slot_bytes,), torch.uint8).numpy()
                into[:] = view(source + one * slot_bytes, (slot_bytes,), torch.uint8).numpy()

        self._launch(work)

    def edit(self, target: int, index: int, value: int, count: int) -> None:
        def work() -> None:
            for place, content in zip(longs(index, count).tolist(), ints(value, count).tolist(), strict=True):
                ints(target + 4 * place, 1)[0] = content

        self._launch(work)

    def _model(self, address: int, *shape: int) -> torch.Tensor:
        return view(address, shape, self.dtype)

    def _places(self, step: DeviceStep) -> tuple[np.ndarray, np.ndarray]:
        """Return row and position of each token."""
        return ints(step.row_T, step.tokens), ints(step.position_T, step.tokens)

    def _changed(self, step: DeviceStep) -> list[int]:
        """Return the tokens that have deltas."""
        if not step.number_T:
            return []
        found: list[int] = np.flatnonzero(ints(step.number_T, step.tokens) > 0).tolist()
        return found

    def _records(self, step: DeviceStep, terms: Terms) -> list[tuple[int, np.ndarray]]:
        """Return the records of each token that has deltas."""
        size = terms.roles * FIELDS
        numbers = ints(step.number_T, step.tokens)
        return [
            (t, longs(terms.address + 8 * size * int(numbers[t]), terms.roles, FIELDS).copy()) for t in self._changed(step)
        ]

    def _virtual(self, step: DeviceStep, virtual: int, width: int) -> dict[int, torch.Tensor]:
        """Return the rows that replace those of virtual tokens, by token."""
        found = {}
        for t in self._changed(step) if virtual else ():
            address, count = longs(virtual + 16 * int(ints(step.number_T, step.tokens)[t]), 2).tolist()
            position = int(ints(step.position_T, step.tokens)[t])
            if position < count:
                found[t] = self._model(address + position * width * self.dtype.itemsize, width)
        return found

    def _read(self, step: DeviceStep, term: Sum) -> torch.Tensor:
        """Return the parts of a sum, added, with bias and deltas."""
        total_TQ = torch.zeros(step.tokens, term.outputs)
        for part_TQ in floats(term.address, term.parts, step.tokens, term.outputs):
            total_TQ += part_TQ
        first = 0
        for address, rows in term.biases:
            if address:
                total_TQ[:, first : first + rows] += self._model(address, rows).float()
            first += rows
        for t in self._changed(step) if term.delta else ():
            total_TQ[t] += floats(term.delta, step.tokens, term.outputs)[t]
        return total_TQ

    def _normed(self, x_D: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Return the norm of one row in float32."""
        config, weight_D = norm.config, self._model(norm.weight, x_D.numel()).float()
        if config.kind == "layer":
            return F.layer_norm(x_D, x_D.shape, weight_D, self._model(norm.bias, x_D.numel()).float(), config.eps)
        return x_D * torch.rsqrt(x_D.pow(2).mean() + config.eps) * (config.offset + weight_D)

    def _slot(
        self, step: DeviceStep, kv: Slots, heads: int, size: int, row: int, layer: int, position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [K, E] of one position, as views."""
        place = row * step.row_stride + layer * step.layer_stride + position // kv.page
        slot = int(ints(step.slots + 4 * place, 1)[0])
        both_2KPE = self._model(kv.address + slot * kv.slot_bytes, 2, heads, kv.page, size)
        return both_2KPE[0, :, position % kv.page], both_2KPE[1, :, position % kv.page]

    def _kept(
        self, step: DeviceStep, hidden: int, width: int, pages: Slots, column: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each token's hidden state and its place in a slot, as views; not of pages without a slot."""
        row_T, position_T = self._places(step)
        hidden_TD, found = self._model(hidden, step.tokens, width), []
        for t in np.flatnonzero(row_T >= 0).tolist():
            page, within = divmod(int(position_T[t]), pages.page)
            place = int(row_T[t]) * step.row_stride + column * step.layer_stride + page
            slot = int(ints(step.slots + 4 * place, 1)[0])
            if slot != NO_SLOT:
                start = pages.address + slot * pages.slot_bytes + within * width * self.dtype.itemsize
                found.append((hidden_TD[t], self._model(start, width)))
        return found


def _alone(x: torch.Tensor) -> torch.Tensor:
    """Return a float32 copy that begins at an aligned address."""
    return x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)

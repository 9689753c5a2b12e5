"""Attention over pages: right, and bitwise the same in prefill and decode, alone, in any batch and in any chunks.

Legend: R rows, T tokens, K KV heads, G query heads of one, E head size, S positions.
"""

from __future__ import annotations

import random

import pytest
import torch

from blockwright.gpu.errors import BackendError
from blockwright.gpu.model.config import AttentionConfig
from blockwright.tests.gpu.cuda.kernels.steps import (
    EACH_TYPE,
    Batch,
    Worker,
    assert_near,
    ops_of,
    poisoned,
    random_attention,
    random_tensor,
)
from blockwright.tests.parts import parts

LENGTH = 70  # two segments of the small tiles, and a bit
LAYER = 1


class Attending:
    """Rows whose keys and values lie in pages; NaN lies behind them."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.config = random_attention(draw, window=draw.choice((None, None, 7, 40)), softcap=draw.choice((0.0, 0.0, 5.0)))
        self.worker = Worker(ops_of(dtype), draw, rows=3, length=LENGTH, page=draw.choice((4, 8, 16, 64)))
        self.lengths = [draw.randint(1, LENGTH), draw.choice((31, 32, 33, 64)), LENGTH]
        self.kv_R = [
            random_tensor(draw, n, 2, self.config.kv_heads, self.config.head_dim, dtype=dtype) for n in self.lengths
        ]
        self.q_R = [random_tensor(draw, n, self.config.heads * self.config.head_dim, dtype=dtype) for n in self.lengths]
        self.slots, memory = self.worker.arena(2 * self.config.kv_heads * self.worker.page * self.config.head_dim)
        for row, kv in enumerate(self.kv_R):
            self._write(memory, row, kv)

    def _write(self, memory: torch.Tensor, row: int, kv_S2KE: torch.Tensor) -> None:
        page, (length, _, heads, size) = self.worker.page, kv_S2KE.shape
        for position in range(length):
            slot = int(self.worker.slots[row, LAYER, position // page])
            view = memory[slot, : 2 * heads * page * size].view(2, heads, page, size)
            view[:, :, position % page] = kv_S2KE[position]

    def run(self, batch: Batch, padding: int = 0) -> list[torch.Tensor]:
        """Return the outputs of each batch row."""
        step = self.worker.step(batch, self.config, padding=padding)
        q_TQ = torch.cat([self.q_R[row][start : start + count] for row, start, count in batch])
        q_TQ, tokens = torch.cat([q_TQ, poisoned(padding, q_TQ.shape[1], dtype=q_TQ.dtype)]), len(q_TQ)
        out = poisoned(step.tokens, q_TQ.shape[1], dtype=q_TQ.dtype)
        needed = self.worker.ops.attend_bytes(next(iter(step.tiles.values())).count, step.longest, self.config)
        scratch = poisoned(needed // 4)
        addresses = [self.worker.keep(one) for one in (out, scratch, q_TQ)]
        self.worker.ops.attend(step, addresses[2], self.config, self.slots, LAYER, *addresses[:2])
        return list(out[:tokens].split([count for _, _, count in batch]))

    def exact(self, row: int, start: int, count: int) -> torch.Tensor:
        config, end = self.config, start + count
        q = self.q_R[row][start:end].double().view(count, config.kv_heads, -1, config.head_dim)
        k, v = self.kv_R[row][:end].double().unbind(1)
        score = torch.einsum("tkge,ske->kgts", q, k) * config.scale
        if config.softcap:
            score = torch.tanh(score / config.softcap) * config.softcap
        own, key = torch.arange(start, end)[:, None], torch.arange(end)[None]
        seen = key <= own
        if config.window:
            seen &= key > own - config.window
        weight = score.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("kgts,ske->tkge", weight, v).flatten(1)


@EACH_TYPE
@pytest.mark.parametrize("seed", parts(100, 20))
def test_each_token_is_right_and_has_its_own_bits(dtype: torch.dtype, seed: int) -> None:
    """One row's last positions at once; then in chunks; then its last token as decode, alone and beside others."""
    case = Attending(dtype, seed)
    row = case.draw.randrange(3)
    length = case.lengths[row]
    start = case.draw.randint(max(0, length - 24), length - 1)
    (whole,) = case.run([(row, start, length - start)])
    assert_near(whole, case.exact(row, start, length - start), dtype, 2)
    cut = case.draw.randint(start, length - 1)
    if cut > start:
        chunks = [case.run([(row, start, cut - start)])[0], case.run([(row, cut, length - cut)])[0]]
        assert torch.equal(torch.cat(chunks), whole)
    batch = [(other, case.lengths[other] - 1, 1) for other in case.draw.sample(range(3), 3)]
    decoded = case.run(batch, padding=case.draw.choice((0, 1)))
    place = [other for other, _, _ in batch].index(row)
    assert torch.equal(decoded[place][0], whole[-1])
    assert torch.equal(case.run([(row, length - 1, 1)])[0][0], whole[-1])


def test_tiles_that_occupy_the_card_join_their_segments_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits with the segments in one program as with a program for each."""
    case = Attending(torch.bfloat16, 5)
    batch = [(2, LENGTH - 9, 9), (1, 0, 3)]
    split = case.run(batch)
    monkeypatch.setattr("blockwright.gpu.cuda.ops_triton.MULTIPROCESSORS", 0)
    assert all(torch.equal(*pair) for pair in zip(split, case.run(batch), strict=True))


@pytest.mark.parametrize(("heads", "size"), [(64, 16), (1, 1200)])
def test_what_has_no_tile_is_refused(heads: int, size: int) -> None:
    config = random_attention(random.Random(0), size=size)
    config = AttentionConfig(hidden=8, heads=heads, kv_heads=1, head_dim=size, norm=config.norm, rope=config.rope, scale=1.0)
    with pytest.raises(BackendError, match=f"heads of {size} and {heads} of them"):
        ops_of(torch.float32).attend_bytes(1, 1, config)

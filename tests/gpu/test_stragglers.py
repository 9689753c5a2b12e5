"""Threads that lose their core at any point of a piece: others do their work, and no bit changes.

``NativeBackend.delay`` makes a share of the points of a piece (before and after it is claimed, computed, committed, stored,
counted) last long. On a machine of few cores threads are late by themselves, too.
"""

from __future__ import annotations

import pytest
import torch

from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
SIZES = {"rows": 3, "max_length": 320, "max_tokens": 320}
SHAPES = {
    "plain": Shape(heads=6, kv_heads=2, head_dim=32, hidden=96),
    "gathered": Shape(head_dim=20, hidden=50, intermediate=45, window=40),
    "biased": Shape(biases=True, softcap=5.0, layers=1),
}
BATCHES = ([(0, 0, 130), (1, 0, 5), (2, 0, 1)], [(0, 130, 1), (2, 1, 90)], [(1, 5, 2)], [(0, 131, 1), (1, 7, 1), (2, 91, 1)])


@BOTH
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("threads", "every", "microseconds"), [(2, 50, 300), (3, 20, 50), (5, 200, 2000), (8, 9, 1)])
def test_late_threads_change_no_bit(name: str, dtype: torch.dtype, threads: int, every: int, microseconds: int) -> None:
    chain = Chain(SHAPES[name], dtype)
    alone, late = NativeRig(chain, 1, **SIZES), NativeRig(chain, threads, **SIZES)
    late.backend.delay(every, microseconds)
    for batch in BATCHES:
        expected, found = alone.logits(batch), late.logits(batch)
        assert torch.equal(found, expected), f"{batch} with {threads} threads"
        assert late.backend.argmax(found).tolist() == expected.argmax(1).tolist()
    late.backend.settle()
    late.backend.delay(0, 0)
    assert torch.equal(late.arena[late.arena == late.arena], alone.arena[alone.arena == alone.arena])


@BOTH
def test_a_call_ends_while_a_thread_still_sleeps_in_the_last_one(dtype: torch.dtype) -> None:
    """Delays far longer than a call: a thread wakes in a later call, whose arguments, tables and memory are others."""
    chain = Chain(Shape(layers=1), dtype)
    alone, late = NativeRig(chain, 1, **SIZES), NativeRig(chain, 4, **SIZES)
    late.backend.delay(60, 30_000)
    for i in range(60):
        batch = [(i % 3, i // 3, 1)]
        assert torch.equal(late.logits(batch), alone.logits(batch)), f"call {i}"

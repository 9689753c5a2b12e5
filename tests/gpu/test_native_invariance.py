"""A row's bits on the native back end: the same alone, in a batch, in chunks, as decode, with any threads and pages.

Shapes of the kernels one by one, on the best instruction set; ``test_bits.py`` has whole models on all of them.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockwright.tests.claims import claim
from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape
from blockwright.tests.parts import examples

pytestmark = pytest.mark.usefixtures("every_instruction_set")
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
# beyond one piece of 256 positions, so that merging is part of what is compared
LONG = {"rows": 3, "max_length": 640, "max_tokens": 640}
SHAPES = {
    "plain": Shape(heads=6, kv_heads=2, head_dim=64, hidden=96),
    "window": Shape(window=300),
    "gathered": Shape(head_dim=20, hidden=50, intermediate=45),
    "wide-group": Shape(heads=9, kv_heads=1, layers=1),
    "short-window": Shape(window=13, kv_heads=4, layers=1),
    "capped": Shape(softcap=5.0, layers=1),
    "capped-window": Shape(softcap=5.0, window=13),
    "long-products": Shape(intermediate=1100, layers=1),
}


@BOTH
@pytest.mark.parametrize("name", SHAPES)
def test_chunks_of_any_length(name: str, dtype: torch.dtype) -> None:
    chain = Chain(SHAPES[name], dtype)
    whole = NativeRig(chain, **LONG).logits([(0, 0, 560)])
    for chunk in (1, 7, 64, 255, 257):
        assert torch.equal(NativeRig(chain, **LONG).in_chunks(0, 560, chunk), whole), f"chunks of {chunk}"


@claim(
    "The same request gives the same bits in any batch, with any chunk and page size and any number of threads",
    of="numerics",
    headline=True,
)
@BOTH
@pytest.mark.parametrize("name", SHAPES)
def test_alone_and_in_a_mixed_batch(name: str, dtype: torch.dtype) -> None:
    rig = NativeRig(Chain(SHAPES[name], dtype), **LONG)
    alone = [rig.logits([(row, 0, 200)]) for row in range(3)]
    rig.arena.view(dtype).fill_(math.nan)
    together = rig.logits([(2, 0, 200), (0, 0, 199), (1, 0, 93)])
    assert torch.equal(together[:200], alone[2])
    assert torch.equal(together[200:399], alone[0][:199])
    mixed = rig.logits([(0, 199, 1), (1, 93, 107)])  # one decodes while the other goes on with its prompt
    assert torch.equal(torch.cat((alone[0][199:], alone[1][93:200])), mixed)


@claim(
    "The same request gives the same bits in any batch, with any chunk and page size and any number of threads",
    of="numerics",
    headline=True,
)
@BOTH
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads(threads: int, dtype: torch.dtype) -> None:
    chain = Chain(Shape(heads=6, kv_heads=2, head_dim=32), dtype)
    one, many = NativeRig(chain, 1, **LONG), NativeRig(chain, threads, **LONG)
    for batch in ([(0, 0, 300), (1, 0, 5), (2, 0, 1)], [(0, 300, 1)], [(2, 1, 1), (1, 5, 2)]):
        assert torch.equal(one.logits(batch), many.logits(batch))


@BOTH
@pytest.mark.parametrize("page_size", [1, 5, 8, 32, 48])
def test_page_sizes(page_size: int, dtype: torch.dtype) -> None:
    chain = Chain(Shape(window=290), dtype)
    whole = NativeRig(chain, **LONG).logits([(0, 0, 400)])
    assert torch.equal(NativeRig(chain, page_size=page_size, **LONG).in_chunks(0, 400, 133), whole)


@BOTH
@pytest.mark.parametrize("page_size", [8, 16])
def test_pages_left_behind_by_a_window_may_change_hands(page_size: int, dtype: torch.dtype) -> None:
    """Slots of pages below the window are overwritten with NaN and renamed; later tokens do not notice."""
    chain = Chain(Shape(window=20), dtype)
    rig = NativeRig(chain, page_size=page_size, **LONG)
    rig.logits([(0, 0, 100)])
    expected = rig.logits([(0, 100, 40)])
    gone = (100 - 19) // page_size
    slots = rig.arena.view(-1, rig.backend.slot_bytes(rig.layout))
    slots[rig.tables.slots[0, 1:, :gone].reshape(-1)] = (
        torch.tensor(math.nan, dtype=dtype).view(-1).view(torch.uint8).repeat(slots.shape[1] // dtype.itemsize)
    )
    rig.tables.slots[0, :, :gone] = rig.tables.slots[1, :, :gone]
    assert torch.equal(rig.logits([(0, 100, 40)]), expected)


@BOTH
def test_a_position_computed_again_leaves_its_neighbour(dtype: torch.dtype) -> None:
    """Two positions share a word in bfloat16: writing the even one again must not clear the odd one."""
    rig = NativeRig(Chain(Shape(), dtype))
    rig.logits([(0, 0, 40)])
    before = rig.arena.clone()
    rig.logits([(0, 0, 21)])
    assert torch.equal(rig.arena, before)


@BOTH
@pytest.mark.parametrize(("prompt", "length"), [(77, 110), (500, 530)])
@pytest.mark.parametrize("name", SHAPES)
def test_where_the_prompt_ends(name: str, prompt: int, length: int, dtype: torch.dtype) -> None:
    """Tokens that were decoded one by one keep their bits when all is computed again in chunks, as a prompt now."""
    chain, pages = Chain(SHAPES[name], dtype), {"page_size": 5} | LONG
    decoding, again = NativeRig(chain, **LONG), NativeRig(chain, threads=2, **pages)
    steps = [decoding.logits([(0, 0, prompt)]), *(decoding.logits([(0, at, 1)]) for at in range(prompt, length))]
    assert torch.equal(again.in_chunks(0, length, 51), torch.cat(steps))


@examples(25)
@given(cuts=st.lists(st.integers(1, 299), max_size=8), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_cuts(cuts: list[int], dtype: torch.dtype) -> None:
    chain = Chain(Shape(layers=1, heads=2, kv_heads=1), dtype)
    rig = NativeRig(chain, threads=2, rows=2, max_length=320, max_tokens=320)
    whole = rig.logits([(0, 0, 300)])
    rig.tables.tokens[1] = rig.tables.tokens[0]
    bounds = sorted({0, 300, *cuts})
    pieces = [rig.logits([(1, a, b - a)]) for a, b in pairwise(bounds)]
    assert torch.equal(torch.cat(pieces), whole)


def test_argmax_takes_the_first_of_equal_maxima() -> None:
    rig = NativeRig(Chain(Shape(), torch.float32), threads=2)
    logits_NV = torch.zeros(5, 37)
    logits_NV[1, [36, 20]] = 2.0
    logits_NV[2, 36] = 1.0
    logits_NV[3] = -math.inf
    logits_NV[4] = torch.arange(37.0)
    best_N = rig.backend.argmax(logits_NV)
    assert best_N.dtype == np.int32
    assert best_N.tolist() == [0, 20, 36, 0, 36]

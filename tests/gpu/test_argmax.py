"""Masks applied by the native kernels: the tokens that the torch back end chooses, under every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.errors import BackendError
from blockwright.gpu.sampling.masks import FREE, TokenMasks, allowed_tokens, best_tokens
from blockwright.gpu.tables import Tables
from blockwright.tests.claims import claim
from blockwright.tests.gpu.native_oracle import instruction_sets
from blockwright.tests.parts import examples

ROWS = 7
BACKENDS = {
    (name, dtype): NativeBackend(dtype, 2, name) for dtype in ("float32", "bfloat16") for name in instruction_sets(dtype)
}
for made in BACKENDS.values():
    made.reserve(Tables(1, 16, 1, 16), ROWS, ROWS)


def drawn_logits(seed: int, vocabulary: int) -> np.ndarray:
    """Return logits with many equal ones; the second last row has infinities, the last one nothing else."""
    chance = np.random.default_rng(seed)
    logits_NV = chance.integers(-3, 4, (ROWS, vocabulary)).astype(np.float32)
    logits_NV[1] = chance.standard_normal(vocabulary).astype(np.float32)
    logits_NV[-2] = np.where(chance.random(vocabulary) < 0.5, -math.inf, logits_NV[-2])
    logits_NV[-1] = -math.inf
    return logits_NV


def drawn_masks(seed: int, vocabulary: int) -> TokenMasks:
    """Return masks of all tokens, of none, few and nearly all, with bits behind the vocabulary, and free rows."""
    chance = np.random.default_rng(seed + 1)
    share_M = [1.0, 0.0, 0.01, 0.99, 0.5, 0.5]
    padded = -(-vocabulary // 32) * 32
    bits = [np.packbits(chance.random(padded) < share, bitorder="little").view(np.uint32) for share in share_M]
    which_N = chance.integers(FREE, len(share_M), ROWS).astype(np.int32)
    return TokenMasks(np.stack(bits), which_N, [])


@claim("A greedy constrained row gets the best allowed token on every instruction set", of="structured-output")
@given(seed=st.integers(0, 10_000), vocabulary=st.one_of(st.integers(1, 100), st.integers(900, 1200), st.just(2048)))
@examples(40)
def test_the_choice_is_the_same_everywhere(seed: int, vocabulary: int) -> None:
    logits_NV, masks = drawn_logits(seed, vocabulary), drawn_masks(seed, vocabulary)
    expected = best_tokens(logits_NV, masks)
    free = best_tokens(logits_NV)
    for backend in BACKENDS.values():
        assert np.array_equal(backend.argmax(torch.from_numpy(logits_NV), masks), expected)
        assert np.array_equal(backend.argmax(torch.from_numpy(logits_NV)), free)
        for n in range(ROWS):
            if (mask := masks.of(n)) is not None:
                token_K, logits_K = backend.allowed(logits_NV[n], mask)
                expected_K, values_K = allowed_tokens(logits_NV[n], mask)
                assert np.array_equal(token_K, expected_K)
                assert np.array_equal(logits_K, values_K)


@pytest.mark.parametrize("place", [0, 5, 1023, 1024, 1069])
def test_a_number_that_is_none_is_never_the_best(place: int) -> None:
    """A model that overflows here and there: the others are compared as always."""
    logits_NV = np.linspace(0.0, 1.0, 1070, dtype=np.float32)[None].copy()
    logits_NV[0, place] = math.nan
    masks = TokenMasks(np.full((1, 34), 0xFFFFFFFF, dtype=np.uint32), np.zeros(1, dtype=np.int32), [])
    best = 1069 if place != 1069 else 1068
    for backend in BACKENDS.values():
        assert backend.argmax(torch.from_numpy(logits_NV), masks).tolist() == [best]
        assert backend.argmax(torch.from_numpy(logits_NV)).tolist() == [best]


def test_masks_that_do_not_fit_are_refused() -> None:
    backend = next(iter(BACKENDS.values()))
    logits = torch.zeros(2, 64)
    which_N = np.zeros(2, dtype=np.int32)
    for masks in (
        TokenMasks(np.zeros((1, 1), dtype=np.uint32), which_N, []),
        TokenMasks(np.zeros((1, 2), dtype=np.int64), which_N, []),
        TokenMasks(np.zeros((1, 2), dtype=np.uint32), which_N[:1], []),
    ):
        with pytest.raises(BackendError, match="do not fit"):
            backend.argmax(logits, masks)
    with pytest.raises(BackendError, match="does not fit"):
        backend.allowed(logits[0].numpy(), np.zeros(1, dtype=np.uint32))

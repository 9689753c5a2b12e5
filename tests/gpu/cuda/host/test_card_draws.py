"""The inputs of the card's draws: with the host's own sampler in the kernels' place, tokens are the sampler's."""

from __future__ import annotations

import pytest

from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.tests.gpu.cuda.draws import ROWS, assert_equal_draws
from blockwright.tests.parts import spans


@pytest.mark.parametrize("seeds", spans(10, 2000 // ROWS // 10, daily=10), ids=str)
def test_the_samplers_tokens(seeds: range) -> None:
    for seed in seeds:
        assert_equal_draws(open_mirror("float32", seed=seed), seed, (1, 7, 300, 3000))

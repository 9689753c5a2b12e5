"""Tokens chosen by the kernels are those of the host's sampler, by all parameters."""

from __future__ import annotations

import pytest

from blockwright.gpu.cuda.platforms import open_interpreted
from blockwright.tests.claims import claim
from blockwright.tests.gpu.cuda.draws import ROWS, assert_equal_draws
from blockwright.tests.parts import spans

DRAWS = 2000


@claim(
    "The card's kernels, interpreted, draw the tokens of the host's sampler in 2,000 draws of all parameters", of="numerics"
)
@pytest.mark.parametrize("seeds", spans(10, DRAWS // ROWS // 10, daily=3), ids=str)
def test_the_hosts_tokens(seeds: range) -> None:
    for seed in seeds:
        assert_equal_draws(open_interpreted("float32"), seed, (1, 7, 500, 1024, 1500))

"""The safety properties over seeds that nobody has seen: ``--seeds`` of them from ``--seed`` on, for ``make nightly``.

A failure says how to play its seed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.runtime.safety.players import Game

pytestmark = pytest.mark.nightly
CHUNK = 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first, count = (metafunc.config.getoption(name) for name in ("seed", "seeds"))
    metafunc.parametrize("seeds", [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)])


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Thousands of warnings about lost nodes cost more than the simulation."""
    with caplog.at_level(logging.CRITICAL + 1, "blockwright.runtime"):
        yield


@claim("The safety properties of the runtime hold for random kills, partitions and losses", of="actor-runtime")
@claim("The safety properties of the runtime hold when heads die, sleep and are cut off, too", of="actor-runtime")
def test_the_safety_properties_hold(seeds: range) -> None:
    for seed in seeds:
        try:
            world = Game(seed, heads=seed % 4).play()
        except Exception as error:
            error.add_note(f"again: --nightly --seed {seed} --seeds 1")
            raise
        assert len(world.sent) >= 300, seed

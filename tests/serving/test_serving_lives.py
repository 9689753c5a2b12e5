"""Workers whose lives are over in the middle of their work, over many seeds: the next life has the memory of the former one,
and no sequence, lease, page or token of it."""

from __future__ import annotations

import pytest

from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts, some
from blockwright.tests.serving.game import REQUESTS, Game

PART = 10
PARTS = 30
DAILY = 1
FIRST, WITH_FAULTS = 50_000, 60_000
FEW = 3  # of a part with faults
ENDS = 3  # lives of a game that are over while requests come


@claim("A worker whose life is over comes back with what is in its memory, and loads nothing again", of="faults")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_request_ends_well_when_lives_end_and_their_memory_stays(part: int) -> None:
    """A new version of an application that came in between two lives is loaded. A life that was over within milliseconds had
    no time to claim anything.
    """
    warm = 0
    for seed in seeds(PART, first=FIRST + part * PART):
        game = Game(seed, faults=False, ends=ENDS).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        warm += len(game.house.warm)
        for worker in game.house.warm:
            assert worker._loader.loaded_bytes == 0 or game.renews, seed
            assert worker._loader.unclaimed == {} or worker is not game.house.workers[worker.config.name], seed
    assert warm > PART


@claim("Every request ends with the right tokens or a typed error when lives end under random faults", of="faults")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_request_ends_when_lives_end_under_faults(part: int) -> None:
    for seed in seeds(FEW, first=WITH_FAULTS + part * FEW):
        game = Game(seed, ends=ENDS).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed


@pytest.mark.parametrize("seed", some((50_009, 50_098), 50_009))
def test_a_new_life_that_hears_of_no_other_node_by_the_address_book_asks(seed: int) -> None:
    """Its hidden states for the next worker were lost (50,009), or its requests failed for a host that it did not know."""
    outcomes = Game(seed, ends=ENDS).play().outcomes
    assert set(outcomes) == {"done", "cancelled"}

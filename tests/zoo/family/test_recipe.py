"""The recipe of a run: one stage for each lower tier, rates that rise and fall, and what is refused."""

from __future__ import annotations

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.zoo.family.recipe import Recipe, make_recipe


def test_each_stage_adds_the_next_lower_tier() -> None:
    recipe = Recipe(exits=(2, 4, 5), steps=10)
    assert recipe.stages == ((5,), (5, 4), (5, 4, 2))
    assert [recipe.stage_of(step) for step in (0, 2, 3, 9)] == [(0, 0, 3), (0, 2, 3), (1, 0, 3), (2, 3, 4)]
    assert Recipe(exits=(2, 4, 5), steps=10, at_once=True).stages == ((5, 4, 2),)
    assert Recipe(exits=(), steps=10).stages == ((),), "the whole model alone"


def test_the_rate_rises_and_falls_in_each_stage() -> None:
    recipe = Recipe(exits=(2, 4), steps=200, rate=1.0)
    first, second = ([recipe.rate_at(step) for step in range(*ends)] for ends in ((0, 100), (100, 200)))
    assert first == second
    peak = first.index(max(first))
    assert peak == 4
    assert max(first) > 0.99
    assert first[peak:] == sorted(first[peak:], reverse=True)
    assert first[-1] < 0.001


@pytest.mark.parametrize(
    ("exits", "steps", "settings", "says"),
    [
        ((2, 1), 5, {}, r"--exits: exit 2 is after 1 layer, but follows one after 2; sort the exits"),
        ((1, 3), 5, {}, r"--exits: exit 2 is after 3 layers, which are all of the model"),
        ((9,), 5, {}, r"--exits: the exit is after 9 layers, but the model has 3; give 1 to 2"),
        ((0,), 5, {}, r"--exits: the exit is after 0 layers, but the model has 3; give 1 to 2"),
        ((1,), 0, {}, r"--steps is 0; give 1 or more$"),
        ((1, 2), 1, {}, r"--steps is 1; give 2 or more \(one for each tier that is added\)"),
        ((1,), 5, {"rat": "1"}, r"there is no setting 'rat' of a training run; did you mean rate\?"),
        ((1,), 5, {"rate": "fast"}, r"rate is 'fast'; give a number from 0 to 1"),
        ((1,), 5, {"rate": "nan"}, r"rate is 'nan'; give a number from 0 to 1"),
        ((1,), 5, {"batch": "0"}, r"batch is '0'; give an integer from 1 to 65536"),
        ((1,), 5, {"lambda": "-1"}, r"lambda is '-1'; give a number from 0 to 100"),
        ((1,), 5, {"optimizer": "adam"}, r"optimizer is 'adam'; did you mean adamw\?"),
        ((1,), 5, {"at_once": "1"}, r"at_once is '1'; give true or false"),
    ],
)
def test_a_wrong_recipe_is_refused(exits: tuple[int, ...], steps: int, settings: dict[str, str], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        make_recipe(exits, steps, 3, settings)


def test_settings_are_texts() -> None:
    settings = {"rate": "1e-3", "lambda": "0.5", "batch": "8", "at_once": "true", "optimizer": "muon", "rank": "4"}
    recipe = make_recipe((1,), 5, 3, settings)
    assert (recipe.rate, recipe.lambda_, recipe.batch, recipe.at_once) == (1e-3, 0.5, 8, True)
    assert (recipe.optimizer, recipe.rank) == ("muon", 4)

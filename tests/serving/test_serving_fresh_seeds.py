"""The same over seeds that nobody has seen: ``--seeds`` of them from ``--seed`` on, for ``make nightly``.

A failure says how to play its seed again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.actors.settings.dispatching import OUTSTANDING
from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.tests.claims import claim
from blockwright.tests.serving.game import Game
from blockwright.tests.serving.house import write_profile

pytestmark = pytest.mark.nightly
PART = 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first, count = (metafunc.config.getoption(name) for name in ("seed", "seeds"))
    metafunc.parametrize("part", [range(at, min(at + PART, first + count)) for at in range(first, first + count, PART)])


@claim(
    "Every request ends with the right tokens or a typed error under random kills, losses, delays and duplicates",
    of="faults",
)
def test_every_request_ends_with_the_right_tokens_or_a_typed_error(part: range, tmp_path: Path) -> None:
    """One in four with dispatchers, of all policies by turns."""
    policies, profile = [*POLICIES], write_profile(tmp_path)
    for seed in part:
        try:
            dispatch = OUTSTANDING if seed % 4 else policies[seed // 4 % len(policies)]
            Game(seed, dispatch=dispatch, profile=profile).play()
        except Exception as error:
            error.add_note(f"again: --nightly --seed {seed} --seeds 1")
            raise

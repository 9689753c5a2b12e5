"""The seeds can fail: each bug in ``planted/`` is caught by the property that ``CAUGHT`` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.tests.planted import Copy, check

PLANTED = Path(__file__).parent / "planted"
CAUGHT = {
    "components_count_for_nothing": "device",
    "deaths_end_no_attempt": "ended",
    "gaps_are_not_asked_for": "ended",
    "pages_are_not_chained": "device",
    "rows_leave_before_their_pages": "device",
    "unsent_attempts_are_forgotten": "ended",
}
DAILY = ("gaps_are_not_asked_for", "pages_are_not_chained")  # in any run
# Where the search begins for those that few seeds see.
FIRST = {
    "deaths_end_no_attempt": 3,
    "gaps_are_not_asked_for": 12,
    "pages_are_not_chained": 50,
    "rows_leave_before_their_pages": 35,
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    rooms = ("policies", "transport", "runtime", "gpu", "actors", "tests/serving")
    made = Copy(tmp_path_factory.mktemp("planted"), "serving.game", *rooms, needs=["torch"])
    yield made
    made.close()


def test_every_patch_applies_and_has_its_property() -> None:
    check(PLANTED, CAUGHT)


@pytest.mark.parametrize(
    "bug", [*DAILY, *(pytest.param(bug, marks=pytest.mark.nightly) for bug in CAUGHT if bug not in DAILY)]
)
def test_a_planted_bug_is_caught(bug: str, copy: Copy) -> None:
    assert copy.seen(PLANTED / f"{bug}.patch", FIRST.get(bug, 0)) == CAUGHT[bug]

"""The safety properties can fail: each bug in ``planted/`` is caught by the property that ``CAUGHT`` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.tests.parts import some
from blockwright.tests.planted import Copy, check

PLANTED = Path(__file__).parent / "planted"
CAUGHT = {
    "calls_wait_for_the_dead": "outcome",
    "chunks_are_taken_twice": "transfer",
    "credit_is_not_enforced": "credit",
    "deadline_is_not_inherited": "outcome",
    "duplicates_are_obeyed": "duplicate",
    "fencing_by_name_alone": "fencing",
    "late_answer_to_another_call": "answer",
    "monitors_fire_twice": "monitor",
    "supervisor_knows_no_bound": "intensity",
    "urgent_lane_is_a_stack": "fifo",
}

DAILY = ("chunks_are_taken_twice", "duplicates_are_obeyed", "fencing_by_name_alone", "urgent_lane_is_a_stack")  # in any run


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    rooms = ("policies", "transport", "runtime", "tests/runtime/safety", "tests/transport")
    made = Copy(tmp_path_factory.mktemp("planted"), "runtime.safety.players", *rooms)
    yield made
    made.close()


def test_every_patch_applies_and_has_its_property() -> None:
    check(PLANTED, CAUGHT)


@pytest.mark.parametrize("bug", some(CAUGHT, *DAILY))
def test_a_planted_bug_is_caught(bug: str, copy: Copy) -> None:
    assert copy.seen(PLANTED / f"{bug}.patch") == CAUGHT[bug]

"""The benchmark of adaptive chains on simulated devices: where applications are, and what counts as gained."""

from __future__ import annotations

import adaptive_simulated
import pytest
from adaptive_simulated import COPIES, DEVICES, FAMILY, Plan, figures, gain_of, models, simulate


@pytest.mark.parametrize("count", adaptive_simulated.APPLICATIONS)
def test_devices_hold_about_equally_many_applications(count: int) -> None:
    made = models("equal", count, 1)
    held = [sum(f"a30-{device}" in one["only"] for one in made) for device in range(DEVICES)]
    assert max(held) - min(held) <= 2
    assert all(len(one["only"]) == COPIES for one in made)
    assert all(len(one["equivalents"]) == FAMILY - 1 and one["name"] not in one["equivalents"] for one in made)
    everywhere = models("ideal", count, 1)
    assert [one["share"] for one in everywhere] == [one["share"] for one in made], "the trace is the same"
    assert not any("only" in one for one in everywhere)


def test_the_gain_is_a_part_of_what_the_ideal_cuts() -> None:
    assert gain_of({"off": 10.0, "equal": 8.5, "ideal": 8.0}) == {"cut": pytest.approx(0.2), "gain": pytest.approx(0.75)}
    assert gain_of({"off": 10.0, "equal": 9.8, "ideal": 9.7}) == {"cut": pytest.approx(0.03)}, "too little for a gain"


def test_subjects_answer_the_same_requests() -> None:
    runs = {subject: simulate(subject, 20, 40.0, Plan(requests=60), 1) for subject in adaptive_simulated.SUBJECTS}
    demands = [[one.demand for one in run.requests] for run in runs.values()]
    assert demands[0] == demands[1] == demands[2]
    found = {subject: figures(run) for subject, run in runs.items()}
    assert "requests" not in found["off"]
    assert found["equal"]["requests"] > 0
    assert all(values["failed"] == 0 for values in found.values())

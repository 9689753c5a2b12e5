"""The controls train what they are named after, shares are those of generated answers, the page has a row for each."""

from __future__ import annotations

import family
import family_sweeps
import page
import pytest
from harness import OURS, Report, misses
from stored import Result

from blockwright.api.commands.training_data import DEMO, read_examples
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.family.grading import answer_all, right
from blockwright.zoo.family.training import Training

PLAN = family.Plan(steps=4, batch=2, examined=1)


def test_the_controls_train_what_their_names_say() -> None:
    stages = {control: PLAN.recipe(control).stages for control in family.CONTROLS}
    assert stages == {
        "cut": ((4,), (4, 3)),
        "steps": ((4,), (4, 3)),
        "at-once": ((4, 3),),
        "low-rank": ((4,), (4, 3)),
        "top-alone": ((),),
    }
    assert {control for control in family.CONTROLS if PLAN.recipe(control).steps == 0} == {"cut"}
    assert {control for control in family.CONTROLS if PLAN.recipe(control).rank} == {"low-rank"}


def test_a_share_is_that_of_generated_answers() -> None:
    base = Checkpoint.open(family.BASE)
    examined = read_examples(DEMO, base, held_out=1)
    training = Training(base, PLAN.recipe("cut"), examined, bfloat16=False)
    ends = base.generation.eos_token_ids
    answers = answer_all(training.network, examined, ends, lambda done, total: None)
    generated = {
        layers: sum(right(one, answer, ends) for one, answer in zip(examined, found, strict=True)) / len(examined)
        for layers, found in answers.items()
    }
    assert family.shares(training, examined) == pytest.approx(generated)
    assert generated[6] > generated[3]


def test_the_page_has_a_row_for_each_control() -> None:
    report = Report("family", {"steps": 8, "batch": 2})
    for control in (*family.CONTROLS, family.SHIPPED):
        for layers in (3, 4, 6):
            report.add(f"{control}/{layers}", OURS, {"right": 0.5})
    report.add("shipped/4", OURS, {"auto_loss": 1.5, "auto_up": 0.25, "auto_work": 0.75, "oracle_work": 0.7})
    report.add(
        "memory", OURS, {"resident_bytes": 2**20, "distinct_bytes": 2**20, "separate_bytes": 2**21, "of_distinct": 1.0}
    )
    text = page.SECTIONS["family"][1](Result(report.document()))
    assert text.count("| 50 % | 50 % | 50 % |") == 6
    assert "1.5 points, 25 % of the requests go up, 75 % of the top's work" in text
    assert "1 MiB resident" in text
    assert misses(report, family.BARS) == ["steps/4 gap_closed: not measured", "steps/6 points_lost: not measured"]


def test_the_thresholds_of_more_points_ask_for_no_more_work() -> None:
    report = Report("family_sweeps", {})
    family_sweeps.thresholds(report, family.Plan(examined=1))
    for layers in family.EXITS:
        work = [report.median(f"loss{points:g}/{layers}", "auto_work", OURS) or 0.0 for points in (0.0, 5.0)]
        assert 0 < work[1] <= work[0]


def test_the_page_of_choices_has_a_row_for_each_weight_and_loss() -> None:
    report = Report("family_sweeps", {})
    for layers in (3, 4, 6):
        report.add(f"lambda3/{layers}", OURS, {"right": 0.25})
    report.add("loss2/4", OURS, {"auto_loss": 1.5, "auto_up": 0.25, "auto_work": 0.75})
    text = page.SECTIONS["family_sweeps"][1](Result(report.document()))
    assert "| 3 | 25 % | 25 % | 25 % |" in text
    assert "1.5 / 25 % / 75 %" in text

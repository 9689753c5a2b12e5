"""The benchmark of an offline order measures what it says, at a size of seconds."""

from __future__ import annotations

import offline_order
import offline_turns
import pytest


@pytest.mark.parametrize("case", offline_order.CASES)
def test_a_small_batch_of_each_kind(case: str) -> None:
    found = offline_order.measure(case, 300)
    assert {bar.metric for bar in offline_order.BARS if bar.case == case} < found.keys()
    assert found["sequence_s"] == pytest.approx(sum(found[f"{name}_s"] for name in ("tree", "estimates", "order", "parts")))
    assert {"mixed": 0.1, "alike": 0.9, "chains": 0.3}[case] < found["sharing"] < 1.0
    assert found["waste_share"] <= 0.01
    assert (found["units"] > 1) == (case != "alike"), "with one beginning all estimates are the same"


@pytest.mark.nightly
def test_turns_of_the_loop_are_measured_through_all_that_happens() -> None:
    found = offline_order.on_a_loop(2000)
    assert found["answers"] >= 5 * offline_turns.ANSWERS
    assert found["turn_ms"] > 0
    assert found["own_ms"] > 0


def test_prompts_are_of_one_length() -> None:
    for case in offline_order.CASES:
        made = offline_order.prompts(case, 50)
        assert {len(prompt) for prompt in made} == {4 * offline_order.TOKENS}
        tokens = [int.from_bytes(prompt[at : at + 4], "big") for prompt in made for at in range(0, len(prompt), 4)]
        assert max(tokens) < 2**17

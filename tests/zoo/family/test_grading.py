"""Grading of tiers: answers as transformers gives them, what counts as right, thresholds of one half judged on the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.export import export
from blockwright.tests.checkpoints import make_family
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.zoo.family.examples import TrainingExample
from blockwright.zoo.family.grading import TierAnswer, answer_all, cheapest, grade, right, tier_bytes
from blockwright.zoo.family.network import ChainNetwork

Checkpoints = Callable[..., Path]
END = 2


@pytest.fixture(scope="module")
def family(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("grading") / "f"
    return Checkpoint.open(make_family(checkpoint("llama"), folder, {1: "shared", 2: "low"}))


def test_answers_are_those_of_transformers(family: Checkpoint, tmp_path: Path) -> None:
    prompts = [tuple(prompt_of(length)) for length in (5, 9, 9)]
    examples = [TrainingExample(prompt, (7, 8, 9, 10)) for prompt in prompts]
    seen: list[tuple[int, int]] = []
    answers = answer_all(ChainNetwork(family), examples, [END], lambda done, total: seen.append((done, total)))
    assert seen[-1] == (9, 9)
    for layers, folder in ((2, export(family.at_exit(2), tmp_path / "2")), (3, family.path)):
        for prompt, answer in zip(prompts, answers[layers], strict=True):
            expected = greedy(folder, prompt, 5)
            wanted = expected[: expected.index(END)] if END in expected else expected
            assert wanted
            assert answer.tokens[: len(wanted)] == wanted
    likely = answers[3][0].likely[0]
    assert likely == sorted(likely, reverse=True)
    assert 0 < sum(map(math.exp, likely)) <= 1


def test_an_answer_is_right_as_a_whole() -> None:
    ended, endless = TrainingExample((1,), (5, 6, END)), TrainingExample((1,), (5, 6))
    cases = {(5, 6): (True, True), (5, 6, 7): (False, True), (5,): (False, False), (): (False, False)}
    for tokens, expected in cases.items():
        answer = TierAnswer(tokens, [])
        assert (right(ended, answer, [END]), right(endless, answer, [END])) == expected


def answered(good: bool, sure: float) -> TierAnswer:
    rest = (1 - sure) / 4
    return TierAnswer((5,) if good else (6,), [[math.log(sure), *[math.log(rest)] * 4]])


def test_a_threshold_is_chosen_on_one_half_and_judged_on_the_other(family: Checkpoint) -> None:
    """The lower tier is right where it is sure, in the half that chooses; in the other half, one sure answer is wrong."""
    examples = [TrainingExample((1,), (5, END))] * 40
    sure = [0.9 if i < 24 else 0.4 for i in range(40)]
    low = [answered(one > 0.5 and i != 1, one) for i, one in enumerate(sure)]
    top = [answered(True, 0.99)] * 40
    grades = grade(ChainNetwork(family), examples, {1: low, 2: top, 3: top}, [END], 1.0)
    assert [(one.layers, one.right, one.agrees) for one in grades] == [(1, 23 / 40, 23 / 40), (2, 1.0, 1.0), (3, 1.0, 1.0)]
    lowest = grades[0]
    assert lowest.threshold is not None
    assert lowest.held_out is not None
    assert 0.4 < lowest.threshold.theta <= 0.9
    assert (lowest.held_out.up, lowest.loss) == (8 / 20, pytest.approx(100 / 20))
    assert lowest.oracle is not None
    assert lowest.oracle.right == 1.0
    assert grades[1].threshold is not None
    assert grades[1].threshold.theta == 0, "nothing is lost without going up"
    assert cheapest(grades) == (2, grades[1].threshold), "from the first exit a third goes up"


def test_tiers_share_all_but_their_heads(family: Checkpoint) -> None:
    distinct, separate = tier_bytes(family)
    assert distinct == family.nbytes + sum(ref.nbytes for ref in family.exits[2].values())
    assert separate == family.nbytes + family.at_exit(1).nbytes + family.at_exit(2).nbytes

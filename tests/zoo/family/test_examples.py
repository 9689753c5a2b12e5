"""Training data: each example once in a round, batches that follow from seed and step, labels on the answers alone."""

from __future__ import annotations

from collections import Counter

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.zoo.family.examples import IGNORED, POOL, ExampleBatches, TrainingExample, tensors

MANY = [TrainingExample((1, i), (2,) * (1 + i % 7)) for i in range(100)]


def test_all_examples_come_once_before_any_comes_again() -> None:
    examples, seen = ExampleBatches(MANY, 4, seed=3), Counter[tuple[int, ...]]()
    for step in range(4 * POOL):
        seen.update(one.prompt for one in examples.batch(step))
    assert {count for one, count in seen.items()} <= {2, 3}
    assert sum(seen.values()) == 4 * 4 * POOL
    assert len(seen) == 100


def test_a_batch_follows_from_the_seed_and_the_step() -> None:
    one, other = ExampleBatches(MANY, 4, seed=3), ExampleBatches(MANY, 4, seed=3)
    later = other.batch(50)
    assert [one.batch(step) for step in range(51)][-1] == later
    assert ExampleBatches(MANY, 4, seed=4).batch(50) != later


def test_the_lengths_in_a_batch_are_alike() -> None:
    examples = ExampleBatches(MANY, 4, seed=3)
    widths = [max(map(len, batch)) - min(map(len, batch)) for batch in map(examples.batch, range(POOL))]
    assert max(widths) <= 2


def test_fewer_examples_than_a_batch_are_repeated() -> None:
    assert len(ExampleBatches(MANY[:1], 4, seed=3).batch(0)) == 4
    with pytest.raises(CheckpointError, match="the training data has 0 examples; give at least one"):
        ExampleBatches([], 4, seed=3)


def test_only_answers_are_learned() -> None:
    tokens_BL, labels_BL = tensors([TrainingExample((5, 6, 7), (8, 9)), TrainingExample((), (3, 4))])
    assert tokens_BL.tolist() == [[5, 6, 7, 8], [3, 0, 0, 0]]
    assert labels_BL.tolist() == [[IGNORED, IGNORED, 8, 9], [4, IGNORED, IGNORED, IGNORED]]

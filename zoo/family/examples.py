"""Training data as tokens, and the batch of each step. A step's batch follows from the seed and the step alone.

So a run that goes on needs no other position in its data than its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from ...gpu.errors import CheckpointError

IGNORED = -100  # label of a position that is not learned
POOL = 16  # batches that are cut from examples in the order of their lengths, so that little is padded


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """An example: the tokens of a prompt, which may be empty, and the tokens to learn, with the end token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


class ExampleBatches:
    """All examples of a run, in batches of ``size``."""

    def __init__(self, examples: Sequence[TrainingExample], size: int, seed: int) -> None:
        """Take the examples of a run. Raises CheckpointError if there is none."""
        if not examples:
            raise CheckpointError("the training data has 0 examples; give at least one")
        self._examples = examples
        self._size = size
        self._seed = seed
        self._pool = lru_cache(maxsize=2)(self._sorted_pool)
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def batch(self, step: int) -> list[TrainingExample]:
        """Return the examples of a step. All of them come once before any comes again."""
        batches = self._pool(step // POOL)
        return batches[step % POOL]

    def _sorted_pool(self, number: int) -> list[list[TrainingExample]]:
        size, count = self._size, len(self._examples)
        places = range(number * POOL * size, (number + 1) * POOL * size)
        chosen = [self._examples[self._order(place // count)[place % count]] for place in places]
        chosen.sort(key=len)
        return [chosen[i * size : (i + 1) * size] for i in self._permutation(POOL, 2 * number + 1)]

    def _shuffled(self, epoch: int) -> list[int]:
        return self._permutation(len(self._examples), 2 * epoch)

    def _permutation(self, count: int, salt: int) -> list[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + salt)
        return [int(i) for i in torch.randperm(count, generator=generator)]


def tensors(examples: Sequence[TrainingExample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels [examples, longest - 1], padded at the end. Only answers are learned."""
    width = max(map(len, examples)) - 1
    tokens_BL = torch.zeros((len(examples), width), dtype=torch.int64)
    labels_BL = torch.full((len(examples), width), IGNORED)
    for row, example in enumerate(examples):
        whole = torch.tensor(example.prompt + example.answer)
        first = max(1, len(example.prompt))
        tokens_BL[row, : len(whole) - 1] = whole[:-1]
        labels_BL[row, first - 1 : len(whole) - 1] = whole[first:]
    return tokens_BL, labels_BL

"""Synthetic tasks with verifiable answers: the demo checkpoint is trained and examined on them.

A prompt is plain text, ``"reverse: abcd ="``; its answer follows at once, ``"dcba"``, and then the end-of-sequence token. A
hash of a prompt's text assigns it to exactly one split, so nothing from the training is ever examined. ``LONGER`` examples
have more symbols than any training prompt of their task. Standard library only; never reads a clock.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

TRAIN = "train"
HELD_OUT = "held-out"  # with the length of training prompts, but none of them
LONGER = "longer"  # longer than every training prompt of the same task

_HELD_OUT_SHARE = 8  # one prompt of eight is held out
_DRAWS = 20_000  # in a row without a new prompt: a task has no more of them


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, the only right answer to it, and its task and split."""

    task: str
    prompt: str
    answer: str
    split: str


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    ``make(random, size)`` returns (prompt without " =", answer). Sizes up to ``trained`` are in the training range.
    """

    make: Callable[[random.Random, int], tuple[str, str]]
    trained: int
    longest: int
    weight: int = 1  # share of the training examples, relative to the others


def letters(draw: random.Random, size: int) -> str:
    """Return a text of ``size`` lower-case letters."""
    return "".join(draw.choices(string.ascii_lowercase, k=size))


def _copy(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"copy: {text}", text


def _reverse(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"reverse: {text}", text[::-1]


def _sort(draw: random.Random, size: int) -> tuple[str, str]:
    alphabet = draw.choice((string.ascii_lowercase, string.digits))
    text = "".join(draw.choices(alphabet, k=size))
    return f"sort: {text}", "".join(sorted(text))


def _count(draw: random.Random, size: int) -> tuple[str, str]:
    letter, other, third = draw.sample(string.ascii_lowercase, 3)
    text = "".join(draw.choices((letter, other, third), k=size))
    return f"count: {letter} in {text}", str(text.count(letter))


def _add(draw: random.Random, size: int) -> tuple[str, str]:
    left, right = draw.randrange(10**size), draw.randrange(10 ** draw.randint(1, size))
    if draw.random() < 0.5:
        left, right = right, left
    if max(len(str(left)), len(str(right))) < size:
        left = 10 ** (size - 1) + draw.randrange(9 * 10 ** (size - 1))
    return f"add: {left}+{right}", str(left + right)


def _repeat(draw: random.Random, size: int) -> tuple[str, str]:
    text, times = letters(draw, size), draw.randint(2, 6)
    return f"repeat {times}: {text}", text * times


def _upper(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"upper: {text}", text.upper()


def _double(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"double: {text}", "".join(letter * 2 for letter in text)


def _spell(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"spell: {text}", "-".join(text)


def _length(draw: random.Random, size: int) -> tuple[str, str]:
    return f"length: {letters(draw, size)}", str(size)


def _following(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    alphabet = string.ascii_lowercase
    return f"next: {text}", text.translate(str.maketrans(alphabet, alphabet[1:] + "a"))


def _range(draw: random.Random, size: int) -> tuple[str, str]:
    first = draw.randint(1, 99 - size)
    return f"range: {first}-{first + size - 1}", ",".join(str(n) for n in range(first, first + size))


TASKS: dict[str, Task] = {
    "copy": Task(_copy, 12, 16),
    "reverse": Task(_reverse, 12, 16),
    "sort": Task(_sort, 12, 16, weight=2),
    "count": Task(_count, 12, 16, weight=4),
    "add": Task(_add, 2, 3, weight=4),
    "repeat": Task(_repeat, 4, 6),
    "upper": Task(_upper, 12, 16),
    "double": Task(_double, 10, 13),
    "spell": Task(_spell, 10, 13),
    "length": Task(_length, 12, 16),
    "next": Task(_following, 12, 16),
    "range": Task(_range, 10, 13, weight=2),
}


def held_out(prompt: str) -> bool:
    """Return True if a prompt is reserved for examination; depends on its text alone."""
    return zlib.crc32(prompt.encode()) % _HELD_OUT_SHARE == 0


def make_example(draw: random.Random, task: str, split: str, tasks: Mapping[str, Task] = TASKS) -> Example:
    """Return one example of a task from a split, with a size drawn evenly from the split's range."""
    kind = tasks[task]
    low, high = (kind.trained + 1, kind.longest) if split == LONGER else (1, kind.trained)
    while True:
        body, answer = kind.make(draw, draw.randint(low, high))
        prompt = f"{body} ="
        if split == LONGER or held_out(prompt) == (split == HELD_OUT):
            return Example(task, prompt, answer, split)


def training_stream(seed: int, tasks: Mapping[str, Task] = TASKS) -> Iterator[Example]:
    """Yield training examples without end, tasks mixed by weight."""
    draw = random.Random(f"{seed}/{TRAIN}")
    names = [name for name, task in tasks.items() for _ in range(task.weight)]
    while True:
        yield make_example(draw, draw.choice(names), TRAIN, tasks)


def examination(
    seed: int, per_task: int, splits: Iterable[str] = (HELD_OUT, LONGER), tasks: Mapping[str, Task] = TASKS
) -> list[Example]:
    """Return ``per_task`` distinct prompts of every task and split, in a fixed order for a seed.

    Raises ValueError if a task has fewer.
    """
    draw = random.Random(f"{seed}/examination")
    found: dict[str, Example] = {}
    for split in splits:
        for task in tasks:
            before = len(found)
            idle = 0  # draws since the last new prompt
            while len(found) < before + per_task:
                if idle == _DRAWS:
                    raise ValueError(
                        f"per_task is {per_task}, but task {task} has {len(found) - before} {split} prompts; ask for fewer"
                    )
                example = make_example(draw, task, split, tasks)
                idle = idle + 1 if example.prompt in found else 0
                found.setdefault(example.prompt, example)
    return list(found.values())


def is_right(example: Example, text: str) -> bool:
    """Return True if the text is exactly the answer, apart from surrounding blanks."""
    return text.strip() == example.answer


def accuracy(outcomes: Iterable[tuple[Example, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (task, split) -> (right, all), plus one row ``("all", split)`` for each split seen."""
    table: dict[tuple[str, str], tuple[int, int]] = {}
    for example, text in outcomes:
        for key in ((example.task, example.split), ("all", example.split)):
            right, total = table.get(key, (0, 0))
            table[key] = (right + is_right(example, text), total + 1)
    return table

"""The demo's tasks: answers that are right, splits that do not meet, a checker that can say no."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from blockwright.api.demo import tasks as demo_tasks
from blockwright.api.demo.tasks import HELD_OUT, LONGER, TASKS, TRAIN, Example


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("copy: abc =", "abc"),
        ("reverse: abc =", "cba"),
        ("sort: cab =", "abc"),
        ("sort: 3012 =", "0123"),
        ("count: a in banana =", "3"),
        ("count: x in banana =", "0"),
        ("add: 58+7 =", "65"),
        ("repeat 3: ab =", "ababab"),
        ("upper: abz =", "ABZ"),
        ("double: abc =", "aabbcc"),
        ("spell: abc =", "a-b-c"),
        ("length: hello =", "5"),
        ("next: ayz =", "bza"),
        ("range: 8-11 =", "8,9,10,11"),
    ],
)
def test_the_answers_of_generated_examples_follow_the_rule_shown_here(prompt: str, answer: str) -> None:
    """Each rule is written a second time, from the prompt alone, and applied to the example and to generated ones."""
    assert solve(prompt) == answer
    task = prompt.split(":")[0].split()[0]
    for split in (TRAIN, HELD_OUT, LONGER):
        draw = random.Random(5)
        for _ in range(50):
            example = demo_tasks.make_example(draw, task, split)
            assert example.answer == solve(example.prompt), example


def solve(prompt: str) -> str:
    name, body = prompt.removesuffix(" =").split(": ")
    task, *times = name.split()
    if task == "count":
        letter, text = body.split(" in ")
        return str(sum(symbol == letter for symbol in text))
    if task == "add":
        return str(sum(map(int, body.split("+"))))
    if task == "range":
        first, last = map(int, body.split("-"))
        return ",".join(map(str, range(first, last + 1)))
    rules = {
        "copy": lambda: body,
        "reverse": lambda: "".join(reversed(body)),
        "sort": lambda: "".join(sorted(body)),
        "repeat": lambda: body * int(times[0]),
        "upper": lambda: "".join(chr(ord(symbol) - 32) for symbol in body),
        "double": lambda: "".join(symbol + symbol for symbol in body),
        "spell": lambda: "-".join(body),
        "length": lambda: str(len(body)),
        "next": lambda: "".join(chr((ord(symbol) - 96) % 26 + 97) for symbol in body),
    }
    return rules[task]()


def test_training_never_meets_the_examination() -> None:
    examined = {example.prompt for example in demo_tasks.examination(1, 40)}
    trained = {example.prompt for example in islice(demo_tasks.training_stream(1), 20_000)}
    assert not examined & trained
    assert not any(demo_tasks.held_out(prompt) for prompt in trained)


def test_longer_prompts_are_longer_than_all_that_training_can_make() -> None:
    draw = random.Random(3)
    for name in TASKS:
        trained = [symbols(demo_tasks.make_example(draw, name, TRAIN)) for _ in range(300)]
        longer = [symbols(demo_tasks.make_example(draw, name, LONGER)) for _ in range(100)]
        assert min(longer) > max(trained), name


def symbols(example: Example) -> int:
    """What grows with an example's size: terms of a range, digits of a sum's longer number, else the text's length."""
    body = example.prompt.removesuffix(" =").split(": ")[1]
    if example.task == "range":
        return example.answer.count(",") + 1
    if example.task == "add":
        return max(map(len, body.split("+")))
    return len(body.split(" in ")[-1])


def test_an_examination_is_fixed_by_its_seed_and_has_every_task_evenly() -> None:
    first, second = demo_tasks.examination(4, 3), demo_tasks.examination(4, 3)
    assert first == second
    assert first != demo_tasks.examination(5, 3)
    assert len({example.prompt for example in first}) == len(first) == 3 * len(TASKS) * 2
    for split in (HELD_OUT, LONGER):
        assert sorted(e.task for e in first if e.split == split) == sorted(list(TASKS) * 3)


def test_an_examination_with_more_prompts_than_a_task_has_is_refused() -> None:
    """A range of at most 10 numbers below 99 has few prompts that are held out."""
    few = {name: TASKS[name] for name in ("copy", "range")}
    every = {text for first in range(1, 99) for size in range(1, 11) if (text := ranged(first, size))}
    assert len(demo_tasks.examination(4, len(every), (HELD_OUT,), few)) == 2 * len(every)
    with pytest.raises(
        ValueError, match=f"per_task is 120, but task range has {len(every)} held-out prompts; ask for fewer"
    ):
        demo_tasks.examination(4, 120, (HELD_OUT,), few)


def ranged(first: int, size: int) -> str:
    """Return a held-out prompt of the task range, or an empty text."""
    prompt = f"range: {first}-{first + size - 1} ="
    return prompt if first + size <= 99 and demo_tasks.held_out(prompt) else ""


def test_the_training_stream_is_fixed_by_its_seed() -> None:
    assert list(islice(demo_tasks.training_stream(1), 50)) == list(islice(demo_tasks.training_stream(1), 50))
    assert list(islice(demo_tasks.training_stream(1), 50)) != list(islice(demo_tasks.training_stream(2), 50))


def test_the_checker_counts_right_and_wrong_answers() -> None:
    copy = Example("copy", "copy: ab =", "ab", HELD_OUT)
    long_copy = Example("copy", "copy: abcdefghijklmn =", "abcdefghijklmn", LONGER)
    outcomes = [(copy, "ab"), (copy, " ab\n"), (copy, "abb"), (copy, ""), (long_copy, "a")]
    assert demo_tasks.accuracy(outcomes) == {
        ("copy", HELD_OUT): (2, 4),
        ("all", HELD_OUT): (2, 4),
        ("copy", LONGER): (0, 1),
        ("all", LONGER): (0, 1),
    }

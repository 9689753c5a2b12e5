"""The demo family: variants of the demo checkpoint, each fine-tuned for one task that the checkpoint itself cannot do.

Six are LoRA adapters; two are full fine-tunes, one of which changes only the upper layers. ``examples/train_demo.py
--family`` trains them. Standard library only.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .tasks import HELD_OUT, Example, Task, examination, letters

ROMAN = (
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)


class Form(StrEnum):
    """The way in which a member differs from the checkpoint."""

    LORA = "LoRA"
    UPPER = "upper layers"
    FULL = "all layers"


@dataclass(frozen=True, slots=True)
class FineTune:
    """One fine-tune and its task. The folder has its name."""

    form: Form
    task: Task


def _dates(draw: random.Random, _: int) -> tuple[str, str]:
    year = draw.randint(1900, 2099)
    month = draw.randint(1, 12)
    day = draw.randint(1, 28)
    return f"date: {year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}"


def _previous(draw: random.Random, size: int) -> tuple[str, str]:
    text, alphabet = letters(draw, size), string.ascii_lowercase
    return f"previous: {text}", text.translate(str.maketrans(alphabet, alphabet[-1] + alphabet[:-1]))


def _consonants(draw: random.Random, size: int) -> tuple[str, str]:
    text = "".join(draw.choice("aeiou" if draw.random() < 0.4 else string.ascii_lowercase) for _ in range(size - 1))
    text += draw.choice("bcdfghjklmnpqrstvwxyz")  # an answer is never empty
    return f"consonants: {text}", "".join(letter for letter in text if letter not in "aeiou")


def _alternate(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"alternate: {text}", text[::2]


def _descending(draw: random.Random, size: int) -> tuple[str, str]:
    text = "".join(draw.choices(string.digits, k=size))
    return f"descending: {text}", "".join(sorted(text, reverse=True))


def _mirror(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"mirror: {text}", text + text[::-1]


def _shout(draw: random.Random, size: int) -> tuple[str, str]:
    text = letters(draw, size)
    return f"shout: {text}", f"{text.upper()}!"


def _roman(draw: random.Random, _: int) -> tuple[str, str]:
    number = rest = draw.randint(1, 1999)
    answer = ""
    for value, sign in ROMAN:
        answer += sign * (rest // value)
        rest %= value
    return f"roman: {number}", answer


FAMILY = {
    "dates": FineTune(Form.LORA, Task(_dates, 1, 1)),
    "previous": FineTune(Form.LORA, Task(_previous, 10, 10)),
    "consonants": FineTune(Form.LORA, Task(_consonants, 10, 10)),
    "alternate": FineTune(Form.LORA, Task(_alternate, 10, 10)),
    "descending": FineTune(Form.LORA, Task(_descending, 10, 10)),
    "mirror": FineTune(Form.LORA, Task(_mirror, 8, 8)),
    "shout": FineTune(Form.UPPER, Task(_shout, 10, 10)),
    "roman": FineTune(Form.FULL, Task(_roman, 1, 1)),
}
TASKS = {name: member.task for name, member in FAMILY.items()}


def questions(name: str, seed: int, count: int) -> list[Example]:
    """Return distinct held-out prompts of a member's task, determined by the seed."""
    return examination(seed, count, (HELD_OUT,), {name: TASKS[name]})


def present(folder: Path) -> dict[str, Path]:
    """Return the members whose folders exist, by name."""
    return {name: folder / name for name in FAMILY if (folder / name).is_dir()}

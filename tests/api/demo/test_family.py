"""The tasks of the demo family: prompts have the answers that a second implementation gives, and splits stay apart."""

from __future__ import annotations

from datetime import date
from itertools import islice
from pathlib import Path

import pytest

from blockwright.api.demo.family import FAMILY, TASKS, Form, present, questions
from blockwright.api.demo.tasks import held_out, training_stream


def solve(prompt: str) -> str:
    name, body = prompt.removesuffix(" =").split(": ")
    rules = {
        "date": lambda: date.fromisoformat(body).strftime("%d.%m.%Y"),
        "previous": lambda: "".join(chr((ord(symbol) - 98) % 26 + 97) for symbol in body),
        "consonants": lambda: "".join(symbol for symbol in body if symbol not in set("aeiou")),
        "alternate": lambda: "".join(symbol for place, symbol in enumerate(body) if place % 2 == 0),
        "descending": lambda: "".join(sorted(body, key=lambda digit: -int(digit))),
        "mirror": lambda: body + "".join(reversed(body)),
        "shout": lambda: body.upper() + "!",
        "roman": lambda: ROMANS[int(body)],
    }
    return rules[name]()


ONES = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
TENS = [sign.translate(str.maketrans("IVX", "XLC")) for sign in ONES]
HUNDREDS = [sign.translate(str.maketrans("IVX", "CDM")) for sign in ONES]
ROMANS = [thousands + hundred + ten + one for thousands in ("", "M") for hundred in HUNDREDS for ten in TENS for one in ONES]


@pytest.mark.parametrize("name", FAMILY)
def test_answers_are_right(name: str) -> None:
    examples = [*islice(training_stream(5, {name: TASKS[name]}), 150), *questions(name, 3, 30)]
    for example in examples:
        assert example.answer == solve(example.prompt), example
        assert example.answer


@pytest.mark.parametrize("name", FAMILY)
def test_questions_are_held_out_and_fixed_by_their_seed(name: str) -> None:
    asked = questions(name, 3, 30)
    assert asked == questions(name, 3, 30)
    assert len({one.prompt for one in asked}) == 30
    assert all(held_out(one.prompt) for one in asked)
    assert not any(held_out(one.prompt) for one in islice(training_stream(3, {name: TASKS[name]}), 500))


def test_the_family_has_six_adapters_and_two_full_fine_tunes() -> None:
    forms = [member.form for member in FAMILY.values()]
    assert [forms.count(form) for form in Form] == [6, 1, 1]


def test_only_members_that_are_there_are_served(tmp_path: Path) -> None:
    (tmp_path / "dates").mkdir()
    (tmp_path / "other").mkdir()
    assert present(tmp_path) == {"dates": tmp_path / "dates"}
    assert present(tmp_path / "nowhere") == {}

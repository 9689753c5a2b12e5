"""The pages of docs/claims/ are what the marks say, and the sentences are short and plain."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from blockwright.tests.docs.claims_page import (
    CAPABILITIES,
    FOLDER,
    Claim,
    ClaimError,
    Evidence,
    add,
    claims,
    marks,
    pages,
)
from blockwright.tests.test_plain_words import WORN

NO_SENTENCE = re.compile(r"\w+\.(?:py|md|json)\b|\b[Ii]ssue \d|#\d|\.$|\|")
OPENINGS = re.compile(r"^(?:What|Who|Whose|Whether|How|Where|When|Of|By|Those|Nobody|It|They)\b")


def test_the_pages_are_what_the_marks_say() -> None:
    every = claims()
    expected = pages(every)
    stored = {path.name: path.read_text() for path in FOLDER.glob("*")}
    stale = sorted(name for name in {*expected, *stored} if expected.get(name) != stored.get(name))
    assert not stale, f"{stale} differ; write them again: python tests/docs/claims_page.py"
    assert {one.capability for one in every} == {*CAPABILITIES}, "every page lists something"


def test_sentences_are_short_and_plain() -> None:
    for one in claims():
        for text in (one.sentence, one.missing):
            assert len(text) <= 115, text
            assert not NO_SENTENCE.search(text), f"without paths, numbers of issues and a full stop: {text!r}"
            assert not WORN.search(text), f"{WORN.findall(text)}: {text!r}"
        assert re.match(r"[A-Z0-9`]", one.sentence), one.sentence
        assert not OPENINGS.match(one.sentence), f"put the subject first: {one.sentence!r}"


def test_marks_are_read_from_the_source() -> None:
    tree = ast.parse(
        """
@claim("A is so", of="faults", headline=True)
@pytest.mark.nightly
def test_a(): ...

class TestB:
    @claim("A is so", of="faults")
    @claim("B is so", of="offline")
    async def test_b(self): ...
"""
    )
    found: dict[str, Claim] = {}
    for mark, evidence in marks(tree, Path("tests/test_it.py")):
        add(found, mark, evidence)
    path = Path("tests/test_it.py")
    assert found["A is so"].evidence == [Evidence(path, "test_a", "nightly"), Evidence(path, "test_b")]
    assert found["A is so"].headline
    row = "| A is so | [test_it.py](../../tests/test_it.py) `a` (nightly), `b` |"
    written = pages(found.values())
    assert row in written["faults.md"]
    assert row in written["README.md"]
    assert "B is so" not in written["README.md"]


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        ('claim("A is so")', "literals"),
        ('claim(TEXT, of="faults")', "literals"),
        ('claim("A", "B", of="faults")', "literals"),
    ],
)
def test_a_mark_that_cannot_be_read_is_reported_with_its_line(mark: str, error: str) -> None:
    with pytest.raises(ClaimError, match=rf"test_it\.py:1: .*{error}"):
        list(marks(ast.parse(f"@{mark}\ndef test_a(): ..."), Path("tests/test_it.py")))


def test_one_sentence_has_one_capability() -> None:
    found = {"A is so": Claim("A is so", "faults")}
    with pytest.raises(ClaimError, match="two capabilities: faults and offline"):
        add(found, Claim("A is so", "offline"), Evidence(Path("tests/test_it.py"), "test_a"))


def test_each_claim_is_open_or_shown_by_what_runs() -> None:
    every = claims()
    assert max(Counter(one.sentence for one in every).values()) == 1
    assert all(bool(one.evidence) != bool(one.missing) for one in every)
    shown = [evidence for one in every for evidence in one.evidence]
    assert [one for one in shown if not one.name.startswith("test_") and one.name != "main"] == [], "nothing runs these"

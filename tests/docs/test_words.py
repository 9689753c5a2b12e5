"""Pages for users, and messages, say what they mean in the field's words; docs/concepts.md alone has ours, beside those."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.tests.docs.pages import BLOCK, ROOT
from blockwright.tests.test_plain_words import WORN

OURS = re.compile(r"\b(sweep|span|home|lineage|desk)s?\b", re.IGNORECASE)
EXPLAINED = re.compile(r"\((?:a )?sweep\)|the worker a sweep|A \*sweep\*, in the names of some metrics,|[Tt]race spans?")
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")
FOR_DEVELOPERS = {
    "add-a-kernel",
    "adding-an-architecture",
    "architecture",
    "change-placement",
    "change-the-scheduler",
    "performance",
    "profiling",
    "scheduling",
    "simulator",
}
FOR_DEVELOPERS |= {"concepts", "runtime"}
FOR_USERS = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in FOR_DEVELOPERS),
]
SAY = ("api", "actors", "gpu/model", "gpu/weights", "policies/requests", "runtime", "zoo")  # folders that word messages
LOGGED = ("info", "warning", "error")


def found(text: str) -> list[str]:
    return [match[0] for match in OURS.finditer(EXPLAINED.sub("", text))]


def messages(source: str) -> Iterator[str]:
    """Texts of errors that are raised and lines that are logged."""
    for node in ast.walk(ast.parse(source)):
        logged = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGED
        if isinstance(node, ast.Raise) or logged:
            texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (text for text in texts if isinstance(text, str) and " " in text)


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_pages_for_users_have_none_of_our_words(page: Path) -> None:
    prose = CODE.sub("", BLOCK.sub("", page.read_text()))
    assert found(prose) == []


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_worn_words(page: Path) -> None:
    prose = re.sub(r"\s+", " ", CODE.sub("", BLOCK.sub("", page.read_text())))
    assert [match[0] for match in WORN.finditer(prose)] == []


def test_messages_have_none_of_our_words() -> None:
    sources = [path.read_text() for folder in SAY for path in (ROOT / folder).rglob("*.py")]
    texts = [text for source in sources if OURS.search(source) for text in messages(source)]
    assert len(texts) > 100
    assert [text for text in texts if found(text)] == []


def test_every_such_word_is_explained() -> None:
    explained = {line.split("|")[1].strip() for line in (ROOT / "docs/concepts.md").read_text().splitlines() if "|" in line}
    assert {"sweep", "span", "home", "lineage"} < explained


def test_a_word_of_ours_is_found_out() -> None:
    assert found("most tokens in one step (a sweep)") == []
    assert found("most tokens in two sweeps; a trace span") == ["sweeps"]
    assert list(messages("raise ValueError(f'the sweep {number} failed')")) == ["the sweep ", " failed"]

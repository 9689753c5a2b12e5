"""Every code block of the documentation runs as it stands."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import BLOCK, LANGUAGES, ROOT, Reader, accept, blocks, elsewhere

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(?:#[^)]*)?\)")
FILE = re.compile(r"[\w./-]+\.(?:py|c|h|md)")


# Blocks of these pages run in any run: they start one server each, and what the others do is tested elsewhere besides.
DAILY = ("README.md", "quick-start.md", "clients.md")


def followed() -> list[Any]:
    pages = [page for page in PAGES if blocks(page.read_text())]
    return [pytest.param(page, marks=pytest.mark.nightly) if page.name not in DAILY else page for page in pages]


@claim("Every code block of the documentation runs and prints what the page shows", of="installation")
@pytest.mark.system
@pytest.mark.parametrize("page", followed(), ids=lambda page: page.name)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in blocks(page.read_text()):
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is_and_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for block in blocks(text):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language!r} is none of {sorted(LANGUAGES)}"
        assert not block.tested or page.name in (ROOT / block.tested).read_text(), (
            f"{block.tested} does not name {page.name}"
        )
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks(text)), "a block is not closed"
    prose = BLOCK.sub("", text)
    indented = re.findall(r"^\n {4,}.*", prose, re.MULTILINE)
    assert not indented, f"code in no fence, which nobody runs: {indented}"
    for words, target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{target} does not exist"
        assert not FILE.fullmatch(words) or target.endswith(words), f"{words} is called {target} now"


@claim("Every command of the documentation has the arguments that the page shows", of="installation")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_accepted(page: Path) -> None:
    """Without running it, so that a flag that is renamed shows in any run."""
    shown = [block for block in blocks(page.read_text()) if block.language == "sh" and "fails" not in block.words]
    for line in (line for block in shown for line in block.text.replace("\\\n", " ").splitlines()):
        if line.startswith("blockwright ") and line.count("'") % 2 == 0:  # a body of several lines ends in another one
            words = shlex.split(line.partition(" | ")[0], comments=True)
            accept(list(takewhile(lambda word: word not in ("&&", "&", ">", "2>&1", ";"), words)))


def test_a_block_that_fails_is_found_out(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    failing, outcome, succeeding = blocks(
        "```sh fails\necho why >&2; false\n```\n\n```text output\nwhy\n```\n\n```sh fails\ntrue\n```\n"
    )
    reader.follow(failing)
    reader.follow(outcome)
    with pytest.raises(AssertionError, match="line 9"):
        reader.follow(succeeding)
    good, bad, file, shell = blocks(
        "```python\nprint(1)\n```\n\n```python\nassert False, 'no'\n```\n\n```python file=a/b.py\nX = 8000\n```\n\n"
        "```sh\npython -c 'import a.b; assert a.b.X != 80' && test -d examples\n```\n"
    )
    reader.follow(good)
    with pytest.raises(AssertionError, match=r"line 5(?s:.*)no"):
        reader.follow(bad)
    reader.follow(file)
    reader.follow(shell)


def test_what_is_meant_by_saying_nothing_is_elsewhere_too() -> None:
    text = (
        "blockwright serve a\nblockwright ps --once\nblockwright chat\nblockwright chat folder\nblockwright chat --verbose"
    )
    assert elsewhere(text, "7").splitlines() == [
        "blockwright serve --port 7 a",
        "blockwright ps --url http://127.0.0.1:7 --once",
        "blockwright chat http://127.0.0.1:7",
        "blockwright chat folder",
        "blockwright chat http://127.0.0.1:7 --verbose",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```ini\n[Service]\nExecStart=/bin/blockwright serve --prot 80\n```\n",
        "```dockerfile\nFROM elsewhere\n```\n",
        "```yaml\na: [\n```\n",
        "```toml\na = \n```\n",
    ],
)
def test_files_that_are_none_are_found_out(text: str, tmp_path: Path) -> None:
    (block,) = blocks(text)
    with pytest.raises((AssertionError, ValueError, yaml.YAMLError)):
        Reader(tmp_path).follow(block)

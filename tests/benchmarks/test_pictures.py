"""Pictures of the documentation: the committed files are what the generator gives, and each is shown on a page."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
PICTURES: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["PICTURES"]


@pytest.mark.parametrize("name", PICTURES)
def test_the_committed_file_is_what_the_generator_gives(name: str) -> None:
    assert (FOLDER / name).read_text() == PICTURES[name](), "python benchmarks/pictures.py writes it again"


def test_every_picture_has_a_generator_and_a_page() -> None:
    assert {path.name for path in FOLDER.glob("*.svg")} == set(PICTURES)
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert [name for name in PICTURES if f"pictures/{name})" not in pages] == []

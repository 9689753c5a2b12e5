"""The table of what ends with what: every role has a row, and every row names a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from blockwright.runtime.cluster.join_text import GATEWAY, PREDICTOR, WORKER
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
ROLES = ("the keeper", "the head", "the forkserver", "the holder", "a worker", "a gateway", "the predictors' process")
JOINED = tuple(f"a {role} that joined" for role in (WORKER, GATEWAY, PREDICTOR))


def rows() -> list[list[str]]:
    """The cells of each row, without the heading."""
    page = (ROOT / "docs" / "operations.md").read_text()
    part = page.partition("## What ends with what\n")[2].partition("\nElsewhere, ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@claim("Every process of a server is in a table of what ends with what, and each row is shown by a test", of="faults")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_shown_by_a_test(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row)
    found = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", row[3])
    assert found, row[3]
    tree = ast.parse((ROOT / found[1]).read_text())
    tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert found[2] in tests, f"{found[1]} has no {found[2]}"


@pytest.mark.parametrize("role", [*ROLES, *JOINED])
def test_every_role_has_a_row(role: str) -> None:
    assert [row for row in rows() if row[0].startswith(role)]

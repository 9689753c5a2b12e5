"""``blockwright explain ID``: whatever the id is, that request is asked for and nothing else."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from blockwright.api.commands import CommandError, explain
from blockwright.api.commands.cli import main

asked: list[str] = []


class Session:
    """A server that remembers no request."""

    def get(self, path: str, holds: str = "") -> Any:
        asked.append(path)
        raise CommandError("there is no such request", 2)


@contextlib.contextmanager
def connected(arguments: argparse.Namespace, known: object) -> Iterator[Session]:
    yield Session()


@pytest.mark.parametrize(
    ("id", "path"),
    [
        ("cmpl-1", "cmpl-1"),
        ("a/b", "a%2Fb"),
        ("../models", "..%2Fmodels"),
        ("a?limit=1", "a%3Flimit%3D1"),
        ("\udcff", "%FF"),
    ],
)
def test_an_id_is_no_path(monkeypatch: pytest.MonkeyPatch, id: str, path: str) -> None:
    monkeypatch.setattr(explain, "connected", connected)
    asked.clear()
    assert main(["explain", id]) == 2
    assert asked == [f"/v1/requests/{path}"]


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_what_cannot_be_an_id(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], id: str) -> None:
    monkeypatch.setattr(explain, "connected", connected)
    asked.clear()
    assert (main(["explain", id]), asked) == (2, [])
    assert "give the ID of a request, or --last" in capsys.readouterr().err

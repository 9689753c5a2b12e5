"""The key that ends a screen, on a terminal of its own."""

from __future__ import annotations

import io
import os
import termios
from collections.abc import Iterator

import pytest

from blockwright.api.commands.keyboard import Keyboard
from blockwright.tests.waiting import PATIENCE


@pytest.fixture
def pair() -> Iterator[tuple[int, io.TextIOWrapper]]:
    person, program = os.openpty()
    with os.fdopen(program) as source:
        yield person, source
    os.close(person)


def test_q_ends_it_and_the_terminal_is_as_before(pair: tuple[int, io.TextIOWrapper]) -> None:
    person, source = pair
    before = termios.tcgetattr(source)
    with Keyboard(source) as keys:
        assert not termios.tcgetattr(source)[3] & (termios.ICANON | termios.ECHO)
        os.write(person, b"xyz")
        assert not keys.ended_within(0.001), "of other keys nothing"
        os.write(person, b"aq")
        assert keys.ended_within(PATIENCE)
    assert termios.tcgetattr(source) == before


def test_where_nobody_types_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with Keyboard(io.StringIO("q")) as keys:
        assert not keys.ended_within(0.5)
    monkeypatch.setattr("sys.stdin", None)
    with Keyboard() as keys:
        assert not keys.ended_within(0.25)
    assert waits == [0.5, 0.25]

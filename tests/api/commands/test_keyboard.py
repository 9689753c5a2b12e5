"""Keys beside a screen, on a terminal of its own."""

from __future__ import annotations

import io
import os
import termios
from collections.abc import Iterator

import pytest

from blockwright.api.commands.keyboard import Keyboard, keys
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
    with Keyboard(source) as keyboard:
        assert not termios.tcgetattr(source)[3] & (termios.ICANON | termios.ECHO)
        assert keyboard.pressed_within(0.001) == []
        os.write(person, b"aq")
        assert keyboard.pressed_within(PATIENCE) == ["a", "q"]
        os.write(person, b"\x1b[B\x1b[6~\x1bOH\x1b[99~/\x7f\r\x1b")
        moves = ["down", "page down", "home", "/", "backspace", "enter", "escape"]
        assert keyboard.pressed_within(PATIENCE) == moves
    assert termios.tcgetattr(source) == before


def test_a_terminal_that_is_gone_is_the_end_of_input(pair: tuple[int, io.TextIOWrapper]) -> None:
    person, source = pair
    with Keyboard(source) as keyboard:
        os.write(person, b"\x04")
        assert keyboard.pressed_within(PATIENCE) == ["end of input"]


def test_keys_have_names() -> None:
    assert list(keys("x\x1b[A\x1b[5~\x1b[1~\x1b[F\x1b[4~y")) == ["x", "up", "page up", "home", "end", "end", "y"]
    assert list(keys("\x1b\x1b[B")) == ["escape", "down"]
    assert list(keys("\x1b[1;5C\x1b[")) == []


def test_where_nobody_types_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with Keyboard(io.StringIO("q")) as keyboard:
        assert keyboard.pressed_within(0.5) == []
    monkeypatch.setattr("sys.stdin", None)
    with Keyboard() as keyboard:
        assert keyboard.pressed_within(0.25) == []
    assert waits == [0.5, 0.25]

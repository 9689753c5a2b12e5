"""A screen that is refreshed until q or Ctrl-C: what fits, what scrolls, a filter, and a server that goes away."""

from __future__ import annotations

import io
import json
import os
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console, Group

from blockwright.api.commands.output import FittedTable
from blockwright.api.commands.screen import Keyboard, Screenful, Scroll, keys, screen, show
from blockwright.api.program.results import RequestError
from blockwright.tests.waiting import PATIENCE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def views() -> Iterator[dict[str, Any]]:
    yield from ({"n": number} for number in range(99))


def render(view: Any) -> Screenful:
    return Screenful("above", f"look {view['n']}")


def test_a_terminal_is_refreshed_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, waits = views(), []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", wait)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        show(lambda: next(looks), render, of="http://there", once=False, as_json=False, interval=0.5)
    assert waits == [0.5, 0.5, 0.5]
    shown = terminal.getvalue()
    assert [shown.count(f"look {number}") > 0 for number in range(4)] == [True, True, True, False]
    assert shown.count("http://there, ") == 3
    assert "every 0.5 s; q quits" in shown
    assert shown.index("\x1b[?1049h") < shown.index("look 0") < shown.index("\x1b[?1049l"), "a screen of its own"


@pytest.mark.parametrize(("once", "terminal"), [(True, Terminal()), (False, io.StringIO())])
def test_once(monkeypatch: pytest.MonkeyPatch, once: bool, terminal: io.StringIO) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    looks = views()
    assert show(lambda: next(looks), render, of="http://there", once=once, as_json=False, interval=1.0) == 0
    assert terminal.getvalue().split("\n") == ["above", "look 0", ""]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    looks = views()
    assert show(lambda: next(looks), render, of="http://there", once=False, as_json=True, interval=1.0) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 0}


def listing(models: int, *, workers: int = 2, short: bool = False) -> Screenful:
    table = FittedTable(("MODEL", "RUN"), [(f"m{n:02}", str(n)) for n in range(models)], numbers=1)
    above = FittedTable(("WORKER", "STATE"), [(f"w{n}", "ready") for n in range(workers)], numbers=0)
    head = Group("3 running", "24 models in 5 MiB", "", above, "")
    return Screenful(head, table, Group("MODEL RUN", "m00 ... m23: 24 idle") if short else None)


def painted(shown: Screenful, scroll: Scroll, height: int = 24) -> list[str]:
    paper = Console(file=io.StringIO(), width=80, height=height, force_terminal=True, color_system=None)
    paper.print(screen(paper, "http://there", shown, scroll), end="")
    lines = paper.file.getvalue().split("\n")  # type: ignore[attr-defined]
    assert len(lines) <= height
    return [line.rstrip() for line in lines]


def test_of_a_list_that_is_too_long_the_head_stays_and_the_rest_scrolls() -> None:
    scroll = Scroll()
    first = painted(listing(24), scroll)
    assert [line.split()[0] if line else "" for line in first[:9]] == [
        "http://there",
        "",
        "3",
        "24",
        "",
        "WORKER",
        "w0",
        "w1",
        "",
    ]
    assert first[9].split() == ["MODEL", "RUN"]
    assert first[10].split()[0] == "m00"
    assert first[-1] == "and 11 more; arrows scroll, / filters"
    assert len(first) == 24
    for key, top, said in (
        ("down", "m01", "1 above, 10 below; arrows scroll, / filters"),
        ("page down", "m11", "11 above, 0 below; arrows scroll, / filters"),
        ("page down", "m11", "11 above, 0 below; arrows scroll, / filters"),
        ("up", "m10", "10 above, 1 below; arrows scroll, / filters"),
        ("home", "m00", "and 11 more; arrows scroll, / filters"),
        ("up", "m00", "and 11 more; arrows scroll, / filters"),
        ("end", "m11", "11 above, 0 below; arrows scroll, / filters"),
        ("page up", "m00", "and 11 more; arrows scroll, / filters"),
    ):
        assert not scroll.press(key)
        lines = painted(listing(24), scroll)
        assert (lines[:10], lines[10].split()[0], lines[-1]) == (first[:10], top, said), key


def test_a_list_that_fits_says_nothing_of_scrolling() -> None:
    assert painted(listing(14), Scroll())[-1].split() == ["m13", "13"]
    assert painted(listing(15), Scroll())[-1] == "and 2 more; arrows scroll, / filters"


def test_a_filter_is_typed_and_ended_by_escape() -> None:
    scroll = Scroll()
    for key in "/Mq":
        assert not scroll.press(key), "q is a letter of the filter"
    assert painted(listing(24), scroll)[-1] == "filter: Mq_ (0 of 24 lines; Esc clears)"
    scroll.press("backspace")
    scroll.press("1")
    lines = painted(listing(24), scroll)
    assert [line.split()[0] for line in lines[10:-1]] == [f"m1{n}" for n in range(10)]
    assert lines[-1] == "filter: M1_ (10 of 24 lines; Esc clears)"
    scroll.press("enter")
    assert painted(listing(24), scroll)[-1] == "filter: M1 (10 of 24 lines; Esc clears)"
    assert not Scroll().press("x")
    scroll.press("escape")
    assert painted(listing(24), scroll)[-1] == "and 11 more; arrows scroll, / filters"
    assert scroll.press("q")


def test_groups_are_shown_if_single_lines_do_not_fit_and_nothing_is_filtered() -> None:
    assert painted(listing(24, short=True), Scroll())[-1] == "m00 ... m23: 24 idle"
    assert painted(listing(14, short=True), Scroll())[-1].split() == ["m13", "13"]
    scroll = Scroll()
    for key in "/m2":
        scroll.press(key)
    assert [line.split()[0] for line in painted(listing(24, short=True), scroll)[10:-1]] == ["m20", "m21", "m22", "m23"]


def test_a_head_that_leaves_no_room_scrolls_too() -> None:
    scroll = Scroll()
    assert painted(listing(24, workers=40), scroll)[-1] == "and 49 more; arrows scroll, / filters"
    scroll.press("end")
    assert painted(listing(24, workers=40), scroll)[-2].split() == ["m23", "23"]
    assert painted(listing(3), Scroll(), height=6)


def test_once_groups_are_shown_on_a_terminal_that_is_too_short() -> None:
    for height, terminal, last in ((24, True, "24 idle"), (60, True, "23"), (24, False, "23")):
        paper = Console(file=io.StringIO(), width=80, height=height, force_terminal=terminal, color_system=None)
        paper.print(listing(24, short=True).fitted(paper))
        assert paper.file.getvalue().rstrip().endswith(last)  # type: ignore[attr-defined]


def test_a_server_that_goes_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RequestError(0, "nothing answers at there:80; start a server")
    starting = RequestError(503, "loading")
    refused = RequestError(403, "not allowed")
    answers = iter([{"n": 0}, gone, starting, {"n": 3}, refused])

    def view() -> Any:
        answer = next(answers)
        if isinstance(answer, RequestError):
            raise answer
        return answer

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(RequestError, match="not allowed"):
        show(view, render, of="http://there", once=False, as_json=False, interval=0.5)
    shown = terminal.getvalue()
    assert shown.count("http://there is away since ") == 2
    assert "nothing answers at there:80. Below is what was seen last; q quits" in shown
    assert [shown.count(f"look {n}") for n in (0, 3)] == [3, 1]
    answers = iter([gone])
    with pytest.raises(RequestError, match="nothing answers"):
        show(view, render, of="http://there", once=False, as_json=False, interval=0.5)


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

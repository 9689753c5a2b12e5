"""Tables on a terminal: refreshed until q or Ctrl-C, and nothing of the kind where nobody looks."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Group

from blockwright.api.commands.tables import milliseconds, show, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def views() -> Iterator[dict[str, Any]]:
    yield from ({"n": number} for number in range(99))


def render(view: Any) -> Group:
    return Group(f"look {view['n']}")


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
    assert terminal.getvalue().strip() == "look 0"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    looks = views()
    assert show(lambda: next(looks), render, of="http://there", once=False, as_json=True, interval=1.0) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 0}


def test_numbers_for_people() -> None:
    assert [size(amount) for amount in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
    assert (milliseconds(None), milliseconds(0.0214)) == ("-", "21 ms")

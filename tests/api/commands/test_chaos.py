"""``blockwright chaos``: its target, and its output until the worker serves again."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from typing import Any

import pytest

from blockwright.api.commands import CommandError, chaos
from blockwright.api.commands.chaos import follow, found, slow
from blockwright.api.commands.cli import main

WORKERS = [{"id": "w0", "pid": 7, "state": "ready"}, {"id": "w1", "pid": 0, "state": "starting"}]


def event(number: int, kind: str, subject: str = "w0") -> dict[str, Any]:
    return {"number": number, "at": 0.0, "event": kind, "subject": subject, "text": f"{subject} {kind}"}


def test_the_worker_is_found_by_its_name() -> None:
    assert found({"workers": WORKERS}, "w0")["pid"] == 7
    with pytest.raises(CommandError, match="there is no worker 'w00'; did you mean w0"):
        found({"workers": WORKERS}, "w00")
    with pytest.raises(CommandError, match="worker w1 is starting; wait"):
        found({"workers": WORKERS}, "w1")


def test_only_news_are_printed_and_its_return_ends_it() -> None:
    old = [event(1, "ready"), event(2, "routes", "m")]
    looks = [
        old,
        [*old, event(3, "down")],
        [*old, event(3, "down"), event(4, "ready", "w1"), event(5, "routes", "m"), event(6, "ready"), event(7, "up")],
    ]
    lines = list(follow(({"events": events} for events in looks), "w0", 2))
    assert [line.partition("  ")[2] for line in lines] == ["w0 down", "w1 ready", "w0 ready"]
    with pytest.raises(CommandError, match="w0 has not come back"):
        list(follow(iter([{"events": old}]), "w0", 2))


def test_a_slow_worker_runs_again_whatever_happens() -> None:
    sent: list[int] = []
    slow(7, 0.3, lambda pid, number: sent.append(number), lambda seconds: None)
    assert sent == [signal.SIGSTOP, signal.SIGCONT] * 3 + [signal.SIGCONT]

    def broken(seconds: float) -> None:
        raise KeyboardInterrupt

    sent.clear()
    with pytest.raises(KeyboardInterrupt):
        slow(7, 0.3, lambda pid, number: sent.append(number), broken)
    assert sent == [signal.SIGSTOP, signal.SIGCONT]


def test_it_says_when_a_slow_worker_is_so_no_longer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        def get(self, path: str, holds: str = "") -> dict[str, Any]:
            return {"workers": WORKERS}

    monkeypatch.setattr(chaos, "connected", lambda arguments: nullcontext(Session()))
    monkeypatch.setattr(chaos, "slow", lambda pid, seconds, kill, sleep: None)
    assert main(["chaos", "slow", "w0", "--seconds", "3"]) == 0
    assert capsys.readouterr().out == "w0 (pid 7) runs half of the time for 3 s\nw0 runs at full speed again\n"


def test_another_machine_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "kill", "w0", "--url", "http://example.org:8000"]) == 2
    assert "is another machine" in capsys.readouterr().err


def test_seconds_are_of_slow_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "kill", "w0", "--seconds", "3"]) == 2
    assert "--seconds says how long slow lasts; leave it out of kill" in capsys.readouterr().err

"""SIGTERM on the command line: what runs is undone, and one sentence says that it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.__main__ import TERMINATED
from blockwright.actors.settings.settings import Settings
from blockwright.api.commands.cli import main
from blockwright.tests.waiting import PATIENCE

DEMO = Path(__file__).parents[1] / "examples" / "demo-checkpoint"


@pytest.mark.parametrize(
    ("words", "code"),
    [(["simulate", "{pipe}"], TERMINATED), (["worker", "--join", "@{pipe}"], 0)],
    ids=["command", "member"],
)
def test_a_command_says_that_it_was_stopped(tmp_path: Path, words: list[str], code: int) -> None:
    """It reads a pipe that nothing is written to, so it is known where it is when the signal comes. A member that is asked
    to end while it starts has nothing left to do.
    """
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe, 0o600)
    command = [sys.executable, "-m", "blockwright", *(word.format(pipe=pipe) for word in words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with pipe.open("w"):  # the command has opened it, too
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (code, "blockwright: stopped by SIGTERM\n")


def test_a_batch_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        """A cluster that is stopped while it starts."""

        def __init__(self, model: str, **_: Any) -> None:
            self.settings = Settings(applications={"demo-checkpoint": model})

        async def __aenter__(self) -> None:
            raise SystemExit(TERMINATED)

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr("blockwright.api.program.embedded.Cluster", Stopped)
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    given.write_text(json.dumps(line))
    with pytest.raises(SystemExit) as ended:
        main(["batch", "run", str(given), "-o", str(out), "--model", str(DEMO)])
    assert ended.value.code == TERMINATED
    assert capsys.readouterr().err == f"answered 0 of 1 line, kept in {out}; the same command answers the rest\n"

"""The keeper with real processes: heads that do next to nothing, which are killed, stopped or end by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.api.serve.keeper import HandedOn
from blockwright.api.serve.server import where_members_look
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system
GRACE, SILENCE = 60.0, 0.3
# A head writes what it was given, and beats until a file says with which code to end.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from blockwright.api.serve.keeper import Keeper

home, grace, silence = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

def head(given):
    heads = len(list(home.glob("head-*"))) + 1
    (home / "new").write_text(f"{os.getpid()} {given.first} {dict(given.memo)}")
    given.leave(heads=heads)
    (home / "new").rename(home / f"head-{heads}")
    while not (home / "end").exists():
        given.beat()
        time.sleep(0.02)
    return int((home / "end").read_text())

raise SystemExit(Keeper(head, ["json"], grace, silence).keep())
"""


class Kept:
    """A keeper with its heads."""

    def __init__(self, home: Path, grace: float = GRACE, silence: float = SILENCE) -> None:
        self.home = home
        command = [sys.executable, "-c", PROGRAM, str(home), str(grace), str(silence)]
        with open(home / "err", "wb") as err:
            self.process = subprocess.Popen(command, stderr=err)

    def said(self, number: int) -> str:
        """Return the arguments of a head, which it wrote behind its pid."""
        path = self.home / f"head-{number}"
        until_now(path.exists, f"head {number}: {(self.home / 'err').read_text()}")
        return path.read_text().partition(" ")[2]

    def head(self, number: int) -> int:
        self.said(number)
        return int((self.home / f"head-{number}").read_text().split()[0])

    def forkserver(self) -> int:
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True).stdout
        return int(found.split()[0])

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.process.kill()
    made.wait()


def gone(pid: int) -> None:
    until_now(lambda: not lives(pid), f"end of {pid}")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("code", [0, 2])
def test_the_exit_code_is_the_heads(kept: Kept, code: int) -> None:
    head = kept.head(1)
    (kept.home / "end").write_text(str(code))
    assert kept.wait() == code
    gone(head)


def test_a_head_that_is_killed_is_followed_by_one_that_gets_what_it_left(kept: Kept) -> None:
    assert kept.said(1) == "True {}"
    os.kill(kept.head(1), signal.SIGKILL)
    assert kept.said(2) == "False {'heads': 1}"
    assert "the head was ended by signal 9; another takes over" in (kept.home / "err").read_text()


def test_a_head_that_is_stopped_is_replaced(kept: Kept) -> None:
    first = kept.head(1)
    os.kill(first, signal.SIGSTOP)
    kept.said(2)
    gone(first)
    assert "the head was ended, as it was stopped" in (kept.home / "err").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_are_the_heads_to_answer(kept: Kept, number: signal.Signals) -> None:
    """This head answers none, so it ends as any program does, and nobody follows it."""
    head = kept.head(1)
    kept.process.send_signal(number)
    assert kept.wait() in (-number, 128 + number, 1)
    gone(head)
    assert not (kept.home / "head-2").exists()


def test_kill_9_of_the_keeper_ends_all_also_a_stopped_head(kept: Kept) -> None:
    head, forkserver = kept.head(1), kept.forkserver()
    os.kill(head, signal.SIGSTOP)
    kept.process.kill()
    assert kept.wait() == -signal.SIGKILL
    gone(head)
    gone(forkserver)


def test_a_head_outlives_its_forkserver_and_another_follows_it(kept: Kept) -> None:
    head, forkserver = kept.head(1), kept.forkserver()
    os.kill(forkserver, signal.SIGKILL)
    until_now(lambda: kept.forkserver() != forkserver, "another forkserver")
    assert lives(head)
    os.kill(head, signal.SIGKILL)
    kept.said(2)


def test_without_grace_a_killed_head_ends_all_as_one_process_would(tmp_path: Path) -> None:
    made = Kept(tmp_path, grace=0.0)
    os.kill(made.head(1), signal.SIGKILL)
    assert made.wait() == -signal.SIGKILL
    assert not (tmp_path / "head-2").exists()


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "tcp://[::1]:0"])
def test_the_next_head_listens_for_members_where_the_first_one_did(listen: str) -> None:
    settings = Settings(listen=listen, head_keys="keys", orphan_grace=60)
    assert where_members_look(settings, HandedOn("", 0, True, {})) is settings
    later = where_members_look(settings, HandedOn("", 0, False, {"joined_at": 4711}))
    assert later.joining.listen == listen.removesuffix("0") + "4711"
    assert later.joining.head_keys == "keys"

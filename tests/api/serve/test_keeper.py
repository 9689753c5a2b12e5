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
from blockwright.policies.cluster.head_restarts import MOST
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system
GRACE, SILENCE = 60.0, 0.3
# A head writes what it was given, and beats until a file says with which code to end. The file "release" is what is
# installed: an interpreter that finds "broken" there does not get far.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from blockwright.api.serve.keeper import Keeper

home, grace, silence, preload = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
sys.path.insert(0, str(home))
release = (home / "release").read_text() if (home / "release").exists() else ""
if release == "broken":
    raise SystemExit(2)

def head(given):
    if (home / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    heads = len(list(home.glob("head-*"))) + 1
    (home / "new").write_text(f"{os.getpid()} {given.first} {dict(given.memo)}{release}")
    given.leave(heads=heads)
    (home / "new").rename(home / f"head-{heads}")
    while not (home / "end").exists():
        given.beat()
        time.sleep(0.02)
    return int((home / "end").read_text())

raise SystemExit(Keeper(head, [preload], grace, silence).keep())
"""


class Kept:
    """A keeper with its heads."""

    def __init__(self, home: Path, grace: float = GRACE, silence: float = SILENCE, preload: str = "json") -> None:
        self.home = home
        command = [sys.executable, "-c", PROGRAM, str(home), str(grace), str(silence), preload]
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


def test_sigterm_again_and_again_changes_no_exit_code(kept: Kept) -> None:
    (kept.home / "deaf").touch()
    kept.head(1)
    (kept.home / "end").write_text("3")
    while kept.process.poll() is None:
        kept.process.send_signal(signal.SIGTERM)
    assert kept.wait() == 3


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


def rolled(kept: Kept, release: str) -> None:
    """Install another release, and roll the head."""
    (kept.home / "release").write_text(release)
    kept.process.send_signal(signal.SIGUSR2)


def complained(kept: Kept, sentence: str) -> None:
    until_now(lambda: sentence in (kept.home / "err").read_text(), sentence)


def test_the_head_is_rolled_to_what_is_installed_forth_and_back(kept: Kept) -> None:
    first, forkserver = kept.head(1), kept.forkserver()
    rolled(kept, "next")
    assert kept.said(2) == "False {'heads': 1}next"
    gone(first)
    gone(forkserver)
    assert "ended for one of the installed release, which takes over" in (kept.home / "err").read_text()
    os.kill(kept.head(2), signal.SIGKILL)
    assert kept.said(3) == "False {'heads': 2}next"
    os.kill(kept.forkserver(), signal.SIGKILL)  # a process of the keeper's own release would fork the next one
    until_now(lambda: lives(kept.forkserver()), "another forkserver")
    os.kill(kept.head(3), signal.SIGKILL)
    assert kept.said(4) == "False {'heads': 3}next"
    rolled(kept, "former")
    assert kept.said(5) == "False {'heads': 4}former"
    (kept.home / "end").write_text("0")
    assert kept.wait() == 0


def test_a_release_that_cannot_be_started_changes_nothing(kept: Kept) -> None:
    first = kept.head(1)
    rolled(kept, "broken")
    complained(kept, "the head is not rolled: the installed release cannot be started")
    assert lives(first)
    rolled(kept, "mended")
    assert kept.said(2) == "False {'heads': 1}mended"


def test_the_keepers_end_is_that_of_a_release_that_is_being_started_too(kept: Kept) -> None:
    head, forkserver = kept.head(1), kept.forkserver()
    kept.process.send_signal(signal.SIGUSR2)
    other = until_two(kept) - {forkserver}
    kept.process.send_signal(signal.SIGTERM)
    kept.wait()
    for pid in (head, forkserver, *other):
        gone(pid)


def until_two(kept: Kept) -> set[int]:
    """The forkservers, once there are two."""
    found = set[int]()

    def look() -> bool:
        children = subprocess.run(["pgrep", "-P", str(kept.process.pid)], capture_output=True, text=True, check=True).stdout
        found.update(map(int, children.split()))
        return len(found) > 1

    until_now(look, "another forkserver")
    return found


def test_without_grace_the_head_is_not_rolled(tmp_path: Path) -> None:
    made = Kept(tmp_path, grace=0.0)
    head = made.head(1)
    made.process.send_signal(signal.SIGUSR2)
    complained(made, "the head is not rolled: orphan_grace is 0, so all would end with it")
    assert lives(head)
    (tmp_path / "end").write_text("0")
    assert made.wait() == 0


def test_heads_that_are_killed_again_and_again_end_all_with_a_sentence(kept: Kept) -> None:
    for number in range(1, MOST + 2):
        os.kill(kept.head(number), signal.SIGKILL)
    assert kept.wait() == 1
    said = (kept.home / "err").read_text()
    assert "another takes over in 0.25 s" in said
    assert "another takes over in 2 s" in said
    assert f"{MOST + 1} heads ended within 60 s; the last one by signal 9" in said


def test_a_signal_to_end_between_two_heads_ends_all(kept: Kept) -> None:
    for number in (1, 2, 3, 4):
        os.kill(kept.head(number), signal.SIGKILL)
    complained(kept, "another takes over in 1 s")
    kept.process.send_signal(signal.SIGTERM)
    assert kept.wait() == 128 + signal.SIGTERM


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


def test_a_signal_while_the_forkserver_imports_does_not_wait_for_it(tmp_path: Path) -> None:
    """A module that never ends stands for those of torch, which take seconds on a busy machine."""
    (tmp_path / "endless.py").write_text(
        f"import signal\nopen({str(tmp_path / 'imports')!r}, 'w').close()\nsignal.pause()\n"
    )
    kept = Kept(tmp_path, preload="endless")
    try:
        head, forkserver = kept.head(1), kept.forkserver()
        until_now((tmp_path / "imports").exists, "it imports")
        kept.process.send_signal(signal.SIGTERM)
        assert kept.wait() == 128 + signal.SIGTERM
        gone(head)
        gone(forkserver)
    finally:
        kept.process.kill()
        kept.wait()

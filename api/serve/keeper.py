"""The keeper: the process that a user starts with ``serve``. It has the head forked, and outlives it.

Owns the lifeline, the forkserver and what one head hands to the next. The forkserver forks the head and all other
processes; when it is gone, whatever ended it, another one is forked from here. Signals are the head's to answer, and so is
the exit code. When a head was ended or stopped from outside, or hangs, the next one adopts the others
(``policies/cluster/head_restarts.py``); when the keeper ends, even by SIGKILL, all end. Loads nothing beyond Python's own
library; starts no thread.

``ROLL`` replaces the head by one of the release that is installed by now: the same command line is started anew and becomes
a forkserver (``NEXT`` in its environment). Once that has its imports, the head is ended, the old forkserver tells what its
children are, and the new one forks the head that adopts them. If it cannot be started, nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ...policies.cluster.head_restarts import EndAll, HeadRestarts

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # signals that the head answers
ROLL = signal.SIGUSR2
NEXT = "BLOCKWRIGHT_FORKSERVER"  # environment variable: what a keeper gives to a forkserver of another release
NO_INPUT = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
TERMINATED = 128 + signal.SIGTERM  # exit code of a program that SIGTERM ended before it could answer
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class HandedOn:
    """The things that a keeper gives to each head.

    address: where the forkserver listens. tell: the descriptor of a pipe to the keeper. first: there was no head before.
    memo: what earlier heads left, by name. keeper: its process.
    """

    address: str
    tell: int
    first: bool
    memo: Mapping[str, Any]
    keeper: int = 0

    def leave(self, **memo: Any) -> None:
        """Leave something for later heads."""
        self._write(json.dumps(memo))

    def beat(self) -> None:
        """Tell the keeper that this head's loop turns."""
        self._write("")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the keeper is gone, and this process is about to be
            os.write(self.tell, f"{line}\n".encode())


Run = Callable[[HandedOn], int]  # runs a head; returns the exit code


class ForkserverProcess:
    """A forkserver as its keeper sees it: a process at the other end of a socket."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid, self.control = pid, control
        self._heard = b""  # the beginning of a line
        self.ready = False  # it has its imports

    def send(self, **order: Any) -> None:
        """Send an order; see ``_obey`` there."""
        with contextlib.suppress(OSError):  # it is gone, as the next read will say
            self.control.sendall(json.dumps(order).encode() + b"\n")

    def said(self) -> list[dict[str, Any]] | None:
        """Return what it has said; None if it is gone."""
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def wait(self) -> int:
        """Close the connection, wait for its end, and return its exit code, or minus its signal."""
        self.control.close()
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def kill(self) -> None:
        """End it; its children go on."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()


class Keeper:
    """See the module. run: the head's program. preload: modules that processes of models find imported."""

    def __init__(self, run: Run, preload: Sequence[str], grace: float, silence: float) -> None:
        self._run, self._preload = run, list(preload)
        self._restarts = HeadRestarts(grace, silence)
        self._memo: dict[str, Any] = {}
        self._told = b""  # the beginning of a line
        self._head, self._head_begun = 0, 0
        self._replaced = ""  # why the present head is being ended
        self._first = True
        self._lives: Sequence[Any] = ()  # the directory, the children and their ends, as the forkserver said last
        self._due: float | None = None  # when the next head is to be started
        self._next: ForkserverProcess | None = None  # of another release
        self._rolls = False  # the head was ended for it
        self._rolled = False  # the release of this process may be an old one
        self._bare = True  # the first forkserver still imports, and so has no child but the head
        self._signals: set[int] = set()  # those to answer; as in the kernel, one that comes twice meanwhile counts once
        self._selector = selectors.DefaultSelector()

    def keep(self) -> int:
        """Return the exit code of the last head, or end as it did. Be a forkserver where another keeper asks for that."""
        if NEXT in os.environ:
            self._serve_another(**json.loads(os.environ.pop(NEXT)))
            return 0
        self._lifeline, self._held = os.pipe()
        self._tell_read, self._tell_write = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._tell_read, self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._address = f"blockwright-{os.getpid()}-{os.urandom(8).hex()}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self._address}")
        self._listener.listen()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the head is ours if its forkserver is gone
        former = {number: signal.signal(number, self._signalled) for number in (*PASSED, ROLL)}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for end in (self._tell_read, self._wake_read):
            self._selector.register(end, selectors.EVENT_READ)
        self._begin(head=True)
        while (end_all := self._turn()) is None:
            pass
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # another one changes no exit code now
        for number, handler in former.items():
            signal.signal(number, handler)
        return self._end(end_all)

    # processes -------------------------------------------------------------------------------------------------------

    def _begin(self, *, head: bool) -> None:
        """Start a forkserver of the present release, and have it fork a head, if one is wanted. Raises OSError."""
        self._forkserver = self._execute() if self._rolled else self._fork()
        known = {"taken": self._lives} if self._lives else {}  # a head that is gone, too, cannot say what lives
        self._want_head(**known) if head else self._forkserver.send(**known)

    def _fork(self) -> ForkserverProcess:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be_forkserver(theirs)
        theirs.close()
        self._selector.register(ours, selectors.EVENT_READ)
        return ForkserverProcess(pid, ours)

    def _execute(self) -> ForkserverProcess:
        """Start a forkserver of the release that is installed now, by this process's command line. Raises OSError."""
        ours, theirs = socket.socketpair()
        ends = {"control": theirs.fileno(), "listener": self._listener.fileno()}
        ends |= {"lifeline": self._lifeline, "tell": self._tell_write}
        for end in ends.values():
            os.set_inheritable(end, True)
        own = {NEXT: json.dumps({**ends, "address": self._address}), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, *sys.orig_argv[1:]]
        try:
            pid = os.posix_spawn(command[0], command, {**os.environ, **own}, file_actions=[NO_INPUT], setsid=True)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._selector.register(ours, selectors.EVENT_READ)
        return ForkserverProcess(pid, ours)

    def _be_forkserver(self, control: socket.socket) -> NoReturn:
        """Become the forkserver, in the child. Signals to the keeper's group do not reach it: the head answers them."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*PASSED, ROLL):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self._selector.close()
            for end in (self._held, self._tell_read, self._wake_read, self._wake_write):
                os.close(end)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a preloaded numpy would start a thread pool, which no fork survives
            from ...runtime.cluster.forkserver import serve_keeper

            serve_keeper(control, self._listener, self._lifeline, self._preload, self._run_head)
            status = 0
        finally:
            os._exit(status)

    def _serve_another(self, control: int, listener: int, lifeline: int, tell: int, address: str) -> None:
        """Be the forkserver of a keeper of another release, which gives these descriptors."""
        from ...runtime.cluster.forkserver import serve_keeper

        self._address, self._tell_write = address, tell
        ends = socket.socket(fileno=control), socket.socket(fileno=listener)
        serve_keeper(*ends, lifeline, self._preload, self._run_head)

    def _run_head(self, given: dict[str, Any]) -> int:
        """Run the head's program, in the head."""
        return self._run(HandedOn(self._address, self._tell_write, given["first"], given["memo"], given["keeper"]))

    def _want_head(self, **more: Any) -> None:
        self._restarts.began()
        self._head, self._replaced = 0, ""
        self._due = None
        self._forkserver.send(head={"first": self._first, "memo": self._memo, "keeper": os.getpid()}, **more)
        self._first = False

    # what happens ----------------------------------------------------------------------------------------------------

    def _signalled(self, number: int, _: object) -> None:
        self._signals.add(number)

    def _turn(self) -> EndAll | None:
        """Wait for something to happen and act on it; return how all ends."""
        pause = self._restarts.look_every if self._due is None else max(self._due - time.monotonic(), 0.0)
        ready = {key.fileobj for key, _ in self._selector.select(pause)}
        now = time.monotonic()
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._tell_read in ready:
            self._take_told(now)
        signals, self._signals = self._signals, set()
        for number in signals:
            if (end_all := self._answer(number)) is not None:
                return end_all
        if self._next is not None and self._next.control in ready:
            self._follow_next(self._next)
        if self._forkserver.control in ready and (end_all := self._follow(now)) is not None:
            return end_all
        if (end_all := self._reap(now)) is not None:
            return end_all
        self._look(now)
        self._roll()
        if self._due is not None and now >= self._due:
            self._want_head()
        return None

    def _take_told(self, now: float) -> None:
        """Take what the head tells: an empty line is a beat."""
        *lines, self._told = (self._told + os.read(self._tell_read, 1 << 16)).split(b"\n")
        for line in lines:
            if line:
                self._memo |= json.loads(line)
            else:
                self._restarts.heard(now)

    def _answer(self, number: int) -> EndAll | None:
        """Begin to roll, or pass a signal on to the head. There may be none yet: then all ends."""
        if number == ROLL:
            self._begin_roll()
            return None
        self._restarts.passed.add(number)
        if not self._head:
            return EndAll(-number)
        self._kill(number)
        return None

    def _follow(self, now: float) -> EndAll | None:
        """Act on what the forkserver says."""
        lines = self._forkserver.said()
        if lines is None:
            return self._follow_other(now)
        for said in lines:
            if "head" in said:
                self._head, self._head_begun = said["head"], said["begun"]
            elif "failed" in said:
                return EndAll(1, f"the head could not be started: {said['failed']}")
            elif "lives" in said:
                self._lives = said["lives"]
            elif "ready" in said:
                self._bare = False
            elif "taken" in said:
                self._switch(said["taken"])
            elif (
                "ended" in said and said["ended"] == self._head and (end_all := self._ended(said["status"], now)) is not None
            ):
                return end_all
        return None

    def _follow_other(self, now: float) -> EndAll | None:
        """Fork another forkserver in place of one that is gone. The head lives on, or is started anew, too."""
        self._selector.unregister(self._forkserver.control)
        code, self._bare = self._forkserver.wait(), False
        if self._next is not None:
            self._give_up_roll(self._next, "the forkserver ended meanwhile")
        if code >= 0 and not self._head:  # it ended by itself; another would fare no better
            return EndAll(1, f"the forkserver exited with {code} before the head was started")
        try:
            self._begin(head=not self._head)
        except OSError as error:
            return EndAll(1, f"no other forkserver can be started ({error.strerror})")
        return None

    def _reap(self, now: float) -> EndAll | None:
        """Take the ends of processes whose forkserver is gone: they are children of this one now."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return None
            if found is None or found.si_pid in {one.pid for one in (self._forkserver, self._next) if one is not None}:
                return None  # the end of a forkserver is seen by its connection
            _, status = os.waitpid(found.si_pid, 0)
            if found.si_pid == self._head and (end_all := self._ended(os.waitstatus_to_exitcode(status), now)) is not None:
                return end_all

    def _ended(self, status: int, now: float) -> EndAll | None:
        """Have another head forked, at once or in a while, or return how all ends."""
        if self._rolls and status == -signal.SIGKILL:
            self._head = 0
            self._forkserver.send(hand_over=True)
            return None
        how = self._restarts.ended(status, now)
        if isinstance(how, EndAll):
            return how
        later = f" in {how.pause:g} s" if how.pause else ""
        _say(f"the head was ended{self._why(status)}; another takes over{later}")
        self._head, self._due = 0, now + how.pause
        return None

    def _why(self, status: int) -> str:
        return f", as {self._replaced}" if self._replaced else f" by signal {-status}"

    def _look(self, now: float) -> None:
        """End a head that does nothing any more."""
        if self._head and not self._replaced:
            self._replaced = self._restarts.lost(now, stopped=self._is_stopped())
            if self._replaced:
                self._kill(signal.SIGKILL)

    def _is_stopped(self) -> bool:
        return self._stat()[:1] == ["T"]

    def _stat(self) -> list[str]:
        """Return what the kernel knows of the head's process, behind its name."""
        try:
            return Path(f"/proc/{self._head}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []

    def _head_lives(self) -> bool:
        """Return True if the head's process is there, and not another one that has got its number."""
        return bool(found := self._stat()) and int(found[19]) == self._head_begun

    def _kill(self, number: int) -> None:
        """Send a signal to the head."""
        with contextlib.suppress(ProcessLookupError):
            if self._head_lives():
                os.kill(self._head, number)

    # another release -------------------------------------------------------------------------------------------------

    def _begin_roll(self) -> None:
        """Start a forkserver of the release that is installed now, beside the present one."""
        why = "another is being started" if self._next is not None else self._restarts.no_roll
        if why:
            _say(f"the head is not rolled: {why}")
            return
        try:
            self._next = self._execute()
        except OSError as error:
            _say(f"the head is not rolled: {sys.executable} cannot be started ({error.strerror})")
        else:
            self._next.send(wait=True)

    def _follow_next(self, other: ForkserverProcess) -> None:
        lines = other.said()
        if lines is None:
            self._give_up_roll(other, "the installed release cannot be started")
        else:
            other.ready |= any("ready" in said for said in lines)

    def _roll(self) -> None:
        """End the head once the other release is ready, if it is up."""
        ready = self._next is not None and self._next.ready and not self._rolls
        if ready and self._head and not self._replaced and self._restarts.is_up:
            self._rolls = True
            self._kill(signal.SIGKILL)

    def _switch(self, taken: Sequence[Any]) -> None:
        """Have the next head forked by the forkserver of the other release, which takes over all children."""
        if self._next is None:  # it has ended since it was ready
            self._want_head()
            return
        self._selector.unregister(self._forkserver.control)
        self._forkserver.kill()
        self._forkserver, self._next = self._next, None
        self._rolls, self._rolled = False, True
        _say("the head was ended for one of the installed release, which takes over")
        self._want_head(taken=taken)

    def _give_up_roll(self, other: ForkserverProcess, why: str) -> None:
        """Go on without the other release."""
        self._selector.unregister(other.control)
        other.kill()
        self._next, self._rolls = None, False
        _say(f"the head is not rolled: {why}")

    def _end(self, how: EndAll) -> int:
        """End all. Return the exit code; die of the head's signal, so that a shell sees what it would of one process."""
        if how.why:
            _say(how.why)
        if self._next is not None:
            self._next.kill()
        self._forkserver.control.close()  # it ends all of its children, and removes the sockets
        os.close(self._held)
        self._listener.close()
        self._forkserver.kill() if self._bare and not self._head_lives() else self._forkserver.wait()
        if how.status == -signal.SIGTERM or how.status == TERMINATED:
            raise SystemExit(TERMINATED)
        if how.status == -signal.SIGINT:
            raise KeyboardInterrupt
        if how.status < 0:
            signal.signal(-how.status, signal.SIG_DFL) if how.status != -signal.SIGKILL else None
            os.kill(os.getpid(), -how.status)
        return how.status


def _say(sentence: str) -> None:
    print(f"blockwright: {sentence}", file=sys.stderr, flush=True)

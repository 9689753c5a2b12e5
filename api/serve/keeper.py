"""The keeper: the process that a user starts with ``serve``. It has the head forked, and outlives it.

Owns the lifeline, the forkserver and what one head hands to the next. The forkserver forks the head and all other
processes; when it is gone, whatever ended it, another one is forked from here. Signals are the head's to answer, and so is
the exit code. When a head was ended or stopped from outside, or hangs, the next one adopts the others
(``policies/cluster/head_restarts.py``); when the keeper ends, even by SIGKILL, all end. Loads nothing beyond Python's own
library; starts no thread.
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
TERMINATED = 128 + signal.SIGTERM  # exit code of a program that SIGTERM ended before it could answer
LOOK = 0.5  # times ``silence`` between two looks at the head
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class HandedOn:
    """The things that a keeper gives to each head.

    address: where the forkserver listens. tell: the descriptor of a pipe to the keeper. first: there was no head before.
    memo: what earlier heads left, by name.
    """

    address: str
    tell: int
    first: bool
    memo: Mapping[str, Any]

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


class Keeper:
    """See the module. run: the head's program. preload: modules that processes of models find imported."""

    def __init__(self, run: Run, preload: Sequence[str], grace: float, silence: float) -> None:
        self._run, self._preload = run, list(preload)
        self._restarts = HeadRestarts(grace, silence)
        self._pause = LOOK * silence if grace else None
        self._memo: dict[str, Any] = {}
        self._told = b""  # the beginning of a line
        self._head, self._head_begun = 0, 0
        self._replaced = ""  # why the present head is being ended
        self._first = True
        self._forkserver = 0
        self._heard = b""  # of the forkserver: the beginning of a line
        self._signals: list[int] = []
        self._selector = selectors.DefaultSelector()

    def keep(self) -> int:
        """Return the exit code of the last head, or end as it did."""
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
        former = {number: signal.signal(number, self._signalled) for number in PASSED}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for end in (self._tell_read, self._wake_read):
            self._selector.register(end, selectors.EVENT_READ)
        self._fork(head=True)
        while (end_all := self._turn()) is None:
            pass
        signal.set_wakeup_fd(-1)
        for number, handler in former.items():
            signal.signal(number, handler)
        return self._end(end_all)

    # processes -------------------------------------------------------------------------------------------------------

    def _fork(self, *, head: bool) -> None:
        """Fork a forkserver, and have it fork a head, if one is wanted."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be_forkserver(theirs)
        theirs.close()
        self._forkserver, self._control = pid, ours
        self._heard = b""
        self._selector.register(ours, selectors.EVENT_READ)
        self._want_head() if head else self._send(None)

    def _be_forkserver(self, control: socket.socket) -> NoReturn:
        """Become the forkserver, in the child. Signals to the keeper's group do not reach it: the head answers them."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in PASSED:
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

    def _run_head(self, given: dict[str, Any]) -> int:
        """Run the head's program, in the head."""
        return self._run(HandedOn(self._address, self._tell_write, given["first"], given["memo"]))

    def _want_head(self) -> None:
        self._restarts.began()
        self._head, self._replaced = 0, ""
        self._send({"first": self._first, "memo": self._memo})
        self._first = False

    def _send(self, head: dict[str, Any] | None) -> None:
        with contextlib.suppress(OSError):  # it is gone, as the next read will say
            self._control.sendall(json.dumps({"head": head}).encode() + b"\n")

    # what happens ----------------------------------------------------------------------------------------------------

    def _signalled(self, number: int, _: object) -> None:
        self._signals.append(number)

    def _turn(self) -> EndAll | None:
        """Wait for something to happen and act on it; return how all ends."""
        ready = {key.fileobj for key, _ in self._selector.select(self._pause)}
        now = time.monotonic()
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._tell_read in ready:
            self._take_told(now)
        while self._signals:
            if (end_all := self._pass_on(self._signals.pop(0))) is not None:
                return end_all
        if self._control in ready and (end_all := self._follow(now)) is not None:
            return end_all
        if (end_all := self._reap(now)) is not None:
            return end_all
        self._look(now)
        return None

    def _take_told(self, now: float) -> None:
        """Take what the head tells: an empty line is a beat."""
        *lines, self._told = (self._told + os.read(self._tell_read, 1 << 16)).split(b"\n")
        for line in lines:
            if line:
                self._memo |= json.loads(line)
            else:
                self._restarts.heard(now)

    def _pass_on(self, number: int) -> EndAll | None:
        """Pass a signal on to the head. There may be none yet: then all ends."""
        self._restarts.passed.add(number)
        if not self._head:
            return EndAll(-number)
        self._kill(number)
        return None

    def _follow(self, now: float) -> EndAll | None:
        """Act on what the forkserver says."""
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return self._follow_other(now)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "head" in said:
                self._head, self._head_begun = said["head"], said["begun"]
            elif "failed" in said:
                return EndAll(1, f"the head could not be started: {said['failed']}")
            elif said["ended"] == self._head and (end_all := self._ended(said["status"], now)) is not None:
                return end_all
        return None

    def _follow_other(self, now: float) -> EndAll | None:
        """Fork another forkserver in place of one that is gone. The head lives on, or is started anew, too."""
        self._selector.unregister(self._control)
        self._control.close()
        _, status = os.waitpid(self._forkserver, 0)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0 and not self._head:  # it ended by itself; another would fare no better
            return EndAll(1, f"the forkserver exited with {code} before the head was started")
        self._fork(head=not self._head)
        return None

    def _reap(self, now: float) -> EndAll | None:
        """Take the ends of processes whose forkserver is gone: they are children of this one now."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return None
            if found is None or found.si_pid == self._forkserver:  # its end is seen by its connection
                return None
            _, status = os.waitpid(found.si_pid, 0)
            if found.si_pid == self._head and (end_all := self._ended(os.waitstatus_to_exitcode(status), now)) is not None:
                return end_all

    def _ended(self, status: int, now: float) -> EndAll | None:
        """Have another head forked, or return how all ends."""
        end_all = self._restarts.ended(status, now)
        if end_all is None:
            print(f"blockwright: the head was ended{self._why(status)}; another takes over", file=sys.stderr, flush=True)
            self._want_head()
        return end_all

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

    def _kill(self, number: int) -> None:
        """Send a signal to the head, and to no other process that has got its number."""
        with contextlib.suppress(ProcessLookupError):
            if (found := self._stat()) and int(found[19]) == self._head_begun:
                os.kill(self._head, number)

    def _end(self, how: EndAll) -> int:
        """End all. Return the exit code; die of the head's signal, so that a shell sees what it would of one process."""
        if how.why:
            print(f"blockwright: {how.why}", file=sys.stderr, flush=True)
        self._control.close()  # the forkserver ends all of its children, and removes the sockets
        os.close(self._held)
        self._listener.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._forkserver, 0)
        if how.status == -signal.SIGTERM or how.status == TERMINATED:
            raise SystemExit(TERMINATED)
        if how.status == -signal.SIGINT:
            raise KeyboardInterrupt
        if how.status < 0:
            signal.signal(-how.status, signal.SIG_DFL) if how.status != -signal.SIGKILL else None
            os.kill(os.getpid(), -how.status)
        return how.status

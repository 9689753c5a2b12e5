"""The holder: a process that holds the pipes of what launchers start elsewhere, so that it need not end with the head.

The forkserver forks it when a head first asks (``ForkserverLauncher.holder``). Heads come and go at its listening socket;
the newest one is obeyed, and hears first what runs and what has ended meanwhile. Messages are lines of JSON:

    orders      {"do": "start", "key", "command", "text", "note", "tells"}, {"do": "say", "key", "text"},
                {"do": "close", "key"}: its standard input, {"do": "kill", "key"}, {"do": "end"}: all, and this process
    answers     {"event": "held", "all": [[KEY, PID, NOTE], ...], "untold": [answers that no head has heard]},
                {"event": "started", "key", "pid"}, {"event": "failed", "key", "why", "again": it may be possible later},
                {"event": "said", "key", "text"},
                {"event": "ended", "key", "status", "lived", "words", "note"}

A process has a group of its own, and what is left of it is killed when the process ends; who else holds its pipes does not
matter. It prints to standard error, and its last line is its last words; one that ``tells`` speaks to the head instead.
When the lifeline is cut (``lifeline.py``), all standard inputs are closed, and what has not ended soon is killed. Owns the
processes; decides nothing. Single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REST = 0.5  # seconds for the rest of what a process printed, once it has ended
PARTING = 5.0  # seconds in which processes may end by themselves, once the lifeline is cut
LONGEST_WORDS = 300  # characters of the last words
LINE = 1 << 16  # bytes of a line that is passed on whole
PEER = struct.Struct("3i")  # what SO_PEERCRED gives: pid, uid, gid


@dataclass(slots=True, eq=False)
class _Held:
    """A process that is held. over: when no more of what it printed is waited for; infinite while it runs."""

    key: str
    note: Any
    process: subprocess.Popen[bytes]
    began: float
    tells: bool
    printed: bytes = b""  # the beginning of a line
    words: str = ""  # its last line
    over: float = math.inf


class Holder:
    """See the module. ``listener``: where heads connect. ``lifeline``: a descriptor, or -1: this process is killed."""

    def __init__(self, listener: socket.socket, lifeline: int) -> None:
        self._listener = listener
        self._held: dict[str, _Held] = {}
        self._head: socket.socket | None = None
        self._heard = b""  # of the head: the beginning of a line
        self._untold: list[dict[str, Any]] = []
        self._ends = math.inf  # when all is killed
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._follow(self._wake_read, self._look)
        self._follow(listener, self._accept)
        if lifeline >= 0:
            self._follow(lifeline, lambda: self._part(lifeline))

    def run(self) -> None:
        """Serve to the end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        while (now := time.monotonic()) < self._ends and (self._held or self._ends == math.inf):
            due = min([self._ends, *(held.over for held in self._held.values())])
            for key, _ in self._selector.select(None if due == math.inf else max(0.0, due - now)):
                key.data()
            self._report()
        for held in self._held.values():
            _kill_group(held)
            held.process.wait()
            held.over = min(held.over, 0.0)
        self._report()

    def _follow(self, what: Any, act: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)

    # heads -----------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        end, _ = self._listener.accept()
        _, uid, _ = PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        if uid != os.getuid():  # the name of the socket is no secret
            end.close()
            return
        self._lose_head()
        self._head, self._heard = end, b""
        self._follow(end, self._obey)
        running = [[held.key, held.process.pid, held.note] for held in self._held.values() if held.over == math.inf]
        untold, self._untold = self._untold, []
        self._tell(event="held", all=running, untold=untold)

    def _lose_head(self) -> None:
        if self._head is not None:
            self._selector.unregister(self._head)
            self._head.close()
            self._head = None

    def _obey(self) -> None:
        """Carry out what the head orders."""
        assert self._head is not None, "it spoke"
        try:
            data = self._head.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._lose_head()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "end":
                self._ends = 0.0
            elif order["do"] == "start":
                self._start(order)
            elif (held := self._held.get(order["key"])) is not None:
                self._do(held, order)

    def _do(self, held: _Held, order: Mapping[str, Any]) -> None:
        """Carry out an order for a process that is there."""
        if order["do"] == "say":
            _write(held, order["text"])
        elif order["do"] == "close":
            _close_input(held)
        elif held.over == math.inf:
            _kill_group(held)

    def _tell(self, **answer: Any) -> None:
        if self._head is not None:
            with contextlib.suppress(OSError):  # then the head is gone, and the next read says so
                self._head.sendall(json.dumps(answer).encode() + b"\n")
                return
        if answer["event"] in ("said", "ended"):  # what was started, the next head sees
            self._untold.append(answer)

    # processes -------------------------------------------------------------------------------------------------------

    def _start(self, order: Mapping[str, Any]) -> None:
        key, pipe = order["key"], subprocess.PIPE
        errors = None if order["tells"] else subprocess.STDOUT
        try:
            process = subprocess.Popen(order["command"], stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)
        except (OSError, ValueError) as error:
            again = getattr(error, "errno", 0) in (errno.EAGAIN, errno.ENOMEM)
            self._tell(event="failed", key=key, why=getattr(error, "strerror", None) or str(error), again=again)
            return
        self._held[key] = held = _Held(key, order["note"], process, time.monotonic(), order["tells"])
        for end in (process.stdin, process.stdout):
            assert end is not None, "it is a pipe"
            os.set_blocking(end.fileno(), False)
        self._follow(process.stdout, lambda: self._read(held))
        self._tell(event="started", key=key, pid=process.pid)
        if order["text"]:
            _write(held, order["text"])

    def _read(self, held: _Held) -> None:
        """Pass on what a process prints, line by line."""
        assert held.process.stdout is not None, "it is a pipe"
        data = os.read(held.process.stdout.fileno(), 1 << 16)
        *lines, rest = (held.printed + (data or b"\n")).split(b"\n")
        held.printed = rest[:LINE]
        for line in lines:
            if text := line.decode(errors="replace").rstrip():
                self._pass_on(held, text)
        if not data:
            self._selector.unregister(held.process.stdout)
            held.process.stdout.close()

    def _pass_on(self, held: _Held, text: str) -> None:
        if held.tells:
            self._tell(event="said", key=held.key, text=text)
            return
        held.words = text[:LONGEST_WORDS]
        with contextlib.suppress(OSError):
            print(text[:LINE], file=sys.stderr, flush=True)

    def _look(self) -> None:
        """Look for processes that have ended; kill the rest of their groups while their numbers are still theirs."""
        self._wake_read.recv(4096)
        for held in self._held.values():
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if held.over == math.inf and os.waitid(os.P_PID, held.process.pid, ended) is not None:
                _kill_group(held)
                held.process.wait()
                held.over = time.monotonic() + REST

    def _report(self) -> None:
        """Report the processes that have ended, and whose output is read."""
        now = time.monotonic()
        for held in [one for one in self._held.values() if one.over < math.inf]:
            output = held.process.stdout
            assert output is not None, "it is a pipe"
            if not output.closed and now < held.over:
                continue
            if not output.closed:
                self._selector.unregister(output)
                output.close()
            _close_input(held)
            del self._held[held.key]
            lived, status = now - held.began, held.process.returncode
            self._tell(event="ended", key=held.key, status=status, lived=lived, words=held.words, note=held.note)

    def _part(self, lifeline: int) -> None:
        """Let all end by themselves for a while, since who this process serves for is gone."""
        self._selector.unregister(lifeline)
        self._ends = min(self._ends, time.monotonic() + PARTING)
        for held in self._held.values():
            _close_input(held)


def _write(held: _Held, text: str) -> None:
    """Give a process a line. One that has not read the ones before it, a whole pipe of them, is ended."""
    line = f"{text}\n".encode()
    assert held.process.stdin is not None, "it is a pipe"
    if not held.process.stdin.closed:
        try:
            if os.write(held.process.stdin.fileno(), line) < len(line):
                _kill_group(held)
        except BlockingIOError:
            _kill_group(held)
        except BrokenPipeError:
            return  # it has ended, as will be said


def _close_input(held: _Held) -> None:
    assert held.process.stdin is not None, "it is a pipe"
    with contextlib.suppress(OSError):
        held.process.stdin.close()


def _kill_group(held: _Held) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(held.process.pid, signal.SIGKILL)

"""The forkserver process: forks worker processes from an interpreter with the heavy imports done.

Started by ``ForkserverLauncher``. Its arguments are the descriptors of one end of a socket pair and of the head's lifeline
(-1: there is none). Owns the children: reports each exit as it happens, and when the other end of the socket closes,
whatever killed the head, kills them all, removes the cluster's sockets and exits. A child outlives it and dies with the head
(``lifeline.py``); without a lifeline, and before the head knows of it, a child dies with the forkserver
(PR_SET_PDEATHSIG). Single-threaded, opens no ZeroMQ context, starts no thread pool: what is forked must be whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import selectors
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from ...transport.address import remove_directory
from ..base.codec import pack, unpack
from ..base.last_resort import log_as
from ..base.loop import loop_factory
from ..base.names import import_module
from .launcher import NodeSpec
from .lifeline import tie
from .node_process import run_node
from .process_watch import begun_at

# messages to this process
SETUP = 1
SPAWN = 2
KILL = 3
PRELOAD = 8
# messages from it
READY = 4
SPAWNED = 5
EXITED = 6
FAILED = 7
LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


def frame(message: list[Any]) -> bytes:
    """Length and MessagePack body, as both ends write them. Plain data only, large bytes included."""
    body = pack(message)
    return LENGTH.pack(len(body)) + body


class Forkserver:
    """See the module."""

    def __init__(self, control: socket.socket, lifeline: int) -> None:
        self._control, self._lifeline = control, lifeline
        self._children: set[int] = set()
        self._received = bytearray()
        self._directory = ""
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)

    def run(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the head's to answer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_read in ready:
                    self._wake_read.recv(4096)
                    self._reap()
                if self._control in ready and not self._read():
                    break
        self._end()

    def _read(self) -> bool:
        """Act on what came; False when the head is gone."""
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            return False
        self._received += data
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            end = LENGTH.size + length
            if len(self._received) < end:
                break
            message = unpack(bytes(self._received[LENGTH.size : end]))
            del self._received[:end]
            self._act(*message)
        return bool(data)

    def _act(self, tag: int, *fields: Any) -> None:
        if tag == SETUP:
            self._directory = fields[0]
        elif tag == PRELOAD:
            sys.path[:] = fields[1]
            self._import(fields[0])
        elif tag == SPAWN:
            self._spawn(*fields)
        elif tag == KILL and fields[0] in self._children:
            os.kill(fields[0], signal.SIGKILL)

    def _import(self, preload: list[str]) -> None:
        failures = []
        gc.disable()  # what is imported stays: looking through it again and again is a seventh of an import of torch
        for module in preload:
            try:
                import_module(module)
            except Exception as error:  # children meet it again where they need the module
                failures.append(f"{module}: {type(error).__name__}: {error}")
        gc.freeze()  # hardly any of it is garbage; the collector of a child would touch, and so copy, every page
        gc.enable()
        self._tell([READY, failures])

    def _spawn(self, request: int, fields: dict[str, Any]) -> None:
        spec, parent = NodeSpec(**fields), os.getpid()
        known, tell_known = os.pipe()  # a byte once the head will learn of the child
        try:
            pid = os.fork()
        except OSError as error:
            os.close(known)
            os.close(tell_known)
            self._tell([FAILED, request, str(error)])
            return
        if pid == 0:
            for end in (self._control, self._wake_read, self._wake_write):
                end.close()
            os.close(tell_known)
            run_child(spec, parent, self._lifeline, known)
        self._children.add(pid)
        os.close(known)
        self._tell([SPAWNED, request, pid, begun_at(pid)])
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(tell_known, b".")
        os.close(tell_known)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._tell([EXITED, pid, os.waitstatus_to_exitcode(status)])

    def _tell(self, message: list[Any]) -> None:
        with contextlib.suppress(OSError):  # then the head is gone, and the next read says so
            self._control.sendall(frame(message))

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        if self._directory:
            remove_directory(Path(self._directory))


def run_child(spec: NodeSpec, parent: int, lifeline: int, known: int) -> NoReturn:
    """Be the forked worker: die with the head, forget the parent's signal handling, live, exit without its clean-up."""
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(_PR_SET_NAME, f"bw-{spec.name}"[:15].encode(), 0, 0, 0)
        set_title(f"blockwright: {spec.name}")
        if os.getppid() == parent and _outlives(lifeline, known):  # else it died before the line above
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            random.seed()
            log_as(spec.name)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                # The runner takes SIGINT over unless it is ignored already, which it is since the fork.
                runner.run(run_node(spec, watched=True))
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _outlives(lifeline: int, known: int) -> bool:
    """Tie this child to the head and no longer to the forkserver, once the head will learn of it: a child that the head does
    not know could not be ended. Return False if the forkserver died before that."""
    with open(known, "rb", buffering=0) as report:
        if not report.read(1):
            return False
    if lifeline >= 0:
        with contextlib.suppress(OSError):  # a kernel that cannot: it dies with the forkserver, as the head will see
            tie(lifeline)
            _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    return True


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        set_title("blockwright: forkserver")
        Forkserver(control, int(sys.argv[2])).run()


_ARG_START, _ARG_END = 45, 46  # of /proc/self/stat, counted from behind the name: fields 48 and 49


def set_title(title: str) -> None:
    """Set the name of this process in ``ps``; it may be cut to the length of the original command line.

    The kernel shows the memory between ``arg_start`` and ``arg_end`` (proc(5)), which a process may write; where that
    cannot be found nothing is changed. Never fails.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            room = end - start
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)

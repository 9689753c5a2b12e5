"""The forkserver process: forks worker processes from an interpreter with the heavy imports done.

Owns the children: reports each exit as it happens, and when who it serves for is gone, whatever killed that, kills them all,
removes the cluster's sockets and exits. There are two it may serve for. Where a head started it (``ForkserverLauncher``), it
is that head, at the other end of a socket pair. Where a keeper did (``api/serve/keeper.py``), it is the keeper; then it also
forks the head, the first one before it imports anything heavy, and a further one when the keeper asks. Heads come and go at
its listening socket, and each hears which children live, and which have ended meanwhile. A forkserver of another release
takes over from one that serves: it imports, waits, and is then given the children of the other.

A child outlives the forkserver and dies with the holder of the lifeline (``lifeline.py``); without a lifeline, and before
the head knows of it, a child dies with the forkserver (PR_SET_PDEATHSIG). Single-threaded, opens no ZeroMQ context, starts
no thread pool: what is forked must be whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import json
import logging
import os
import random
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...transport.address import remove_directory
from ..base.codec import pack, unpack
from ..base.last_resort import log_as
from ..base.loop import loop_factory
from ..base.names import import_module
from .holder import Holder
from .launcher import NodeSpec
from .lifeline import tie
from .node_process import run_node
from .process_watch import begun_at

# messages of a head to this process
SETUP = 1
SPAWN = 2
KILL = 3
PRELOAD = 8
KNOWN = 9
HOLD = 11
# messages from it
READY = 4
SPAWNED = 5
EXITED = 6
FAILED = 7
CHILDREN = 10
HOLDS = 12
LENGTH = struct.Struct("<I")
PEER = struct.Struct("3i")  # what SO_PEERCRED gives: pid, uid, gid
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)
RunHead = Callable[[dict[str, Any]], int]  # runs a head with what the keeper hands to it; returns the exit code


def frame(message: list[Any]) -> bytes:
    """Length and MessagePack body, as both ends write them. Plain data only, large bytes included."""
    body = pack(message)
    return LENGTH.pack(len(body)) + body


class Connection:
    """This end of a socket, and what came of a message that is not whole yet."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._received = bytearray()

    def read(self) -> bool:
        """Take what came; False when the other end is gone."""
        try:
            data = self.end.recv(1 << 16)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def frames(self) -> list[list[Any]]:
        """Return the messages of a head that are whole."""
        found = []
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            end = LENGTH.size + length
            if len(self._received) < end:
                break
            found.append(unpack(bytes(self._received[LENGTH.size : end])))
            del self._received[:end]
        return found

    def lines(self) -> list[dict[str, Any]]:
        """Return the messages of the keeper that are whole: it has no other codec."""
        *whole, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        return [json.loads(line) for line in whole]


class Forkserver:
    """See the module. ``lifeline``: -1: there is none.

    head: the connection to the head that started it, or None. keeper: the one to the keeper, with ``listener``, where heads
    connect, and ``run_head``.
    """

    def __init__(
        self,
        lifeline: int,
        head: socket.socket | None = None,
        *,
        keeper: socket.socket | None = None,
        listener: socket.socket | None = None,
        run_head: RunHead | None = None,
    ) -> None:
        self._lifeline, self._run_head = lifeline, run_head
        self._head = Connection(head) if head is not None else None
        self._keeper = Connection(keeper) if keeper is not None else None
        self._listener = listener
        self._children: dict[int, NodeSpec] = {}
        self._others: list[list[Any]] = []  # children of a forkserver before this one, as their head knows them
        self._untold: list[list[Any]] = []  # ends of children while there was no head: name, incarnation, status
        self._head_pid = 0
        self._directory = ""
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)

    def run(self, preload: Sequence[str] = ()) -> None:
        """Serve to the end. preload: modules to import once the keeper has said whether it wants a head now."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the head's to answer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        with self._selector as selector:
            for end in (self._head, self._keeper):
                if end is not None:
                    selector.register(end.end, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            if self._keeper is not None and self._turn({self._keeper.end}):
                self.preload(preload)
                self._tell_keeper(ready=True)
            while self._turn({key.fileobj for key, _ in selector.select()}):
                pass
        self._end()

    def _turn(self, ready: set[Any]) -> bool:
        """Act on what came; False when who it serves for is gone."""
        if self._wake_read in ready:
            self._wake_read.recv(4096)
            self._reap()
        if self._keeper is not None and self._keeper.end in ready:
            if not self._keeper.read():
                return False
            for order in self._keeper.lines():
                self._obey(**order)
        if self._listener in ready:
            self._accept()
        if self._head is not None and self._head.end in ready:
            there = self._head.read()
            for message in self._head.frames():
                self._act(*message)
            if not there:
                return self._lose_head()
        return True

    # the keeper and its heads ----------------------------------------------------------------------------------------

    def _obey(
        self,
        *,
        head: dict[str, Any] | None = None,
        wait: bool = False,
        hand_over: bool = False,
        taken: tuple[str, list[list[Any]], list[list[Any]]] | None = None,
    ) -> None:
        """Do what the keeper wants. head: what is given to the head to fork. wait: another forkserver serves heads still.
        hand_over: tell what ``taken`` is for the next one: the directory, the children, and their ends.
        """
        if taken is not None:
            self._directory, self._others, self._untold = taken
        if not wait and self._listener is not None and self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
        if hand_over:
            self._tell_keeper(taken=self._taken())
        if head is not None:
            self._fork_head(head)

    def _taken(self) -> list[Any]:
        """Return what another forkserver has to know to take over."""
        return [self._directory, [*self._own(), *self._others], self._untold]

    def _own(self) -> list[list[Any]]:
        """Return the children, as heads know them."""
        return [[spec.name, spec.incarnation, pid, begun_at(pid)] for pid, spec in self._children.items()]

    def _accept(self) -> None:
        """Serve a head that has connected, and no former one any more. Tell it which children live."""
        assert self._listener is not None, "it is ready"
        end, _ = self._listener.accept()
        _, uid, _ = PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        if uid != os.getuid():  # the name of the socket is no secret
            end.close()
            return
        if self._head is not None:
            self._lose_head()
        self._head = Connection(end)
        self._selector.register(end, selectors.EVENT_READ)
        ended, self._untold = self._untold, []
        self._tell([CHILDREN, self._directory, self._own(), self._others, ended])

    def _lose_head(self) -> bool:
        """Forget a head that is gone; return whether there may be another."""
        assert self._head is not None, "there was one"
        self._selector.unregister(self._head.end)
        self._head.end.close()
        self._head = None
        return self._keeper is not None

    def _fork_head(self, given: dict[str, Any]) -> None:
        """Fork a head; the keeper learns its number and beginning, and its end."""
        assert self._run_head is not None, "a keeper has given it"
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell_keeper(failed=str(error))
            return
        if pid == 0:
            self._let_go()
            run_head(self._run_head, given, parent, self._lifeline)
        self._head_pid = pid
        self._tell_keeper(head=pid, begun=begun_at(pid))

    def _tell_keeper(self, **fields: Any) -> None:
        if self._keeper is not None:
            with contextlib.suppress(OSError):  # then the keeper is gone, and the next read says so
                self._keeper.end.sendall(json.dumps(fields).encode() + b"\n")

    def _let_go(self) -> None:
        """Close, in a child, what belongs to this process alone."""
        signal.set_wakeup_fd(-1)
        for one in (self._head, self._keeper):
            if one is not None:
                one.end.close()
        for end in (self._wake_read, self._wake_write):
            end.close()
        self._selector.close()
        if self._listener is not None:
            self._listener.close()

    # children --------------------------------------------------------------------------------------------------------

    def _act(self, tag: int, *fields: Any) -> None:
        if tag == SETUP:
            self._directory = fields[0]
            self._tell_keeper(lives=self._taken())
        elif tag == KNOWN:
            self._others = fields[0]
            self._tell_keeper(lives=self._taken())
        elif tag == PRELOAD:
            sys.path[:] = fields[1]
            self.preload(fields[0])
        elif tag == SPAWN:
            self._spawn(*fields)
        elif tag == HOLD:
            self._hold(*fields)
        elif tag == KILL and fields[0] in self._children:
            os.kill(fields[0], signal.SIGKILL)

    def preload(self, modules: Sequence[str]) -> None:
        """Import modules, and tell a head that is connected of the ones that failed."""
        failures = []
        gc.disable()  # what is imported stays: looking through it again and again is a seventh of an import of torch
        for module in modules:
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
            self._let_go()
            os.close(tell_known)
            run_child(spec, parent, self._lifeline, known)
        self._children[pid] = spec
        os.close(known)
        self._tell_keeper(lives=self._taken())  # it says so to the next forkserver, should this one and the head end at once
        self._tell([SPAWNED, request, pid, begun_at(pid)])
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(tell_known, b".")
        os.close(tell_known)

    def _hold(self, request: int, address: str) -> None:
        """Fork the process that holds what is started elsewhere (``holder.py``), unless there is one at this address."""
        parent, why = os.getpid(), ""
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(f"\0{address}")
                listener.listen()
                if os.fork() == 0:
                    self._let_go()
                    run_holder(listener, parent, self._lifeline)
            except OSError as error:
                why = str(error) if error.errno != errno.EADDRINUSE else ""
        self._tell([HOLDS, request, why])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._head_pid:
                self._head_pid = 0
                self._tell_keeper(ended=pid, status=code)
            elif (spec := self._children.pop(pid, None)) is not None:
                if self._head is None and self._keeper is not None:
                    self._untold.append([spec.name, spec.incarnation, code])
                self._tell([EXITED, pid, code])

    def _tell(self, message: list[Any]) -> None:
        if self._head is not None:
            with contextlib.suppress(OSError):  # then the head is gone, and the next read says so
                self._head.end.sendall(frame(message))

    def _end(self) -> None:
        every = [*self._children, *filter(None, [self._head_pid])]
        for pid in every:
            os.kill(pid, signal.SIGKILL)
        for pid in every:
            os.waitpid(pid, 0)
        if self._directory:
            remove_directory(Path(self._directory))


def run_head(run: RunHead, given: dict[str, Any], parent: int, lifeline: int) -> NoReturn:
    """Be the forked head: die with the keeper, answer signals as a program does, run, exit without the parent's clean-up."""
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        set_title("blockwright: head")
        if os.getppid() == parent:  # else it died before the line above
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, _terminated)
            with contextlib.suppress(OSError):  # a kernel that cannot: it dies with the forkserver
                tie(lifeline)
                _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
            random.seed()
            gc.unfreeze()
            status = run(given)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        _leave(status)


def _terminated(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def run_child(spec: NodeSpec, parent: int, lifeline: int, known: int) -> NoReturn:
    """Be the forked worker: die with the head, forget the parent's signal handling, live, exit without its clean-up."""
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(_PR_SET_NAME, f"bw-{spec.name}"[:15].encode(), 0, 0, 0)
        set_title(f"blockwright: {spec.name}")
        if os.getppid() == parent and _outlives(lifeline, known):  # else it died before the line above
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
        _leave(status)


def run_holder(listener: socket.socket, parent: int, lifeline: int) -> NoReturn:
    """Be the forked process that holds what is started elsewhere: end when the lifeline is cut; without one, die with this
    process's parent."""
    status = 1
    try:
        if lifeline < 0:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        set_title("blockwright: holder")
        if os.getppid() == parent or lifeline >= 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            Holder(listener, lifeline).run()
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(status)


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
    """Serve for the head that started this process: the arguments are its end of a socket pair, and the lifeline's."""
    with socket.socket(fileno=int(sys.argv[1])) as head:
        set_title("blockwright: forkserver")
        Forkserver(int(sys.argv[2]), head).run()


def serve_keeper(
    keeper: socket.socket, listener: socket.socket, lifeline: int, preload: Sequence[str], run_head: RunHead
) -> None:
    """Serve for a keeper, in a process that it forked: first fork the head that it asks for, then import ``preload``."""
    set_title("blockwright: forkserver")
    Forkserver(lifeline, keeper=keeper, listener=listener, run_head=run_head).run(preload)


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

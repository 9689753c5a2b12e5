"""The launcher of local processes: the head's end of the forkserver.

Owns the forkserver process, what it said of its children, and their lifeline. If the forkserver dies, its children go on,
the head watches them itself, and another forkserver is started at once, since it also guards the directory against a
``kill -9`` of the head. The exit status of a child without its forkserver is not known: it is reported as ended by SIGKILL.
Where the kernel has no pidfds, children die with their forkserver.

Where a keeper forked this process (``KeptForkserver``), forkserver and lifeline are the keeper's, which also starts another
forkserver; the children of earlier heads are this launcher's from its start on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...transport.address import PeerId, private_directory, remove_directory, remove_socket
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.sockets import SocketTransport
from ..base.codec import unpack
from ..node.stall_watch import note_of
from .forkserver import (
    CHILDREN,
    EXITED,
    FAILED,
    HOLD,
    HOLDS,
    KILL,
    KNOWN,
    LENGTH,
    PRELOAD,
    READY,
    SETUP,
    SPAWN,
    SPAWNED,
    frame,
)
from .launcher import Launcher, LaunchError, NodeSpec, OnExit
from .lifeline import Lifeline
from .process_watch import ProcessWatch, begun_at, can_watch

log = logging.getLogger("blockwright.runtime")

ChildLine = tuple[str, int, int, int]  # name, incarnation, number of its process, when that began
_PROGRAM = "from blockwright.runtime.cluster.forkserver import main; main()"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptForkserver:
    """A keeper's forkserver. address: of its socket, in the abstract namespace. first: no head was there before."""

    address: str
    first: bool


class ForkserverLauncher(Launcher):
    """See the module and ``Launcher``.

    directory: of the sockets; a fresh private one if None. preload: modules that children find imported (imported only:
    a module that starts threads on import must not be named). kept: a keeper's forkserver; None: a fresh one.
    """

    def __init__(
        self, directory: Path | None = None, *, preload: Sequence[str] = (), kept: KeptForkserver | None = None
    ) -> None:
        self._wanted, self._preload = directory, list(preload)
        self._kept = kept
        self._path: Path | None = None
        self._requests = itertools.count(1)
        self._pending: dict[int, tuple[NodeSpec, asyncio.Future[int]]] = {}
        unique = kept.address if kept is not None else f"blockwright-{os.getpid()}-{os.urandom(8).hex()}"
        self._holder = f"{unique}-holder"  # address in the abstract namespace
        self._holding: dict[int, asyncio.Future[str]] = {}  # until there is a holder; why there can be none, or empty
        self._numbers: dict[str, int] = {}  # the last incarnation of each name
        self._children: dict[int, PeerId] = {}
        self._watches: dict[int, ProcessWatch] = {}  # of these, if the kernel can
        self._orphans: dict[int, asyncio.Event] = {}  # of these, whose forkserver is dead; set at their end
        self._lifeline: Lifeline | None = None
        self._connected = asyncio.Event()  # a forkserver listens
        self._begun: tuple[subprocess.Popen[bytes], socket.socket] | None = None  # and not taken over yet
        self._serving = False  # this one has done its imports
        self._broken = ""  # why no further one is started
        self._found: asyncio.Future[str] | None = None  # the directory of the heads before, once their children are known
        self._childless = asyncio.Event()
        self._stopping = False

    @property
    def directory(self) -> str:
        return str(self._path)

    def begin(self) -> None:
        """Start the forkserver before there is an event loop, so that it imports while this process still does.

        ``start`` goes on with it, and says what hindered this; else ``abandon`` ends it.
        """
        if self._kept is None:
            with contextlib.suppress(OSError):
                self._begun = self._execute()

    def abandon(self) -> None:
        """End what was begun, where ``start`` has not taken it over."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            _end(*begun)
            self._cut()

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        if self._kept is not None and not self._kept.first:
            await self._take_over()
            return
        self._path = private_directory(self._wanted)
        try:
            await self._open()
        except BaseException:  # a cancellation too; then there is nothing that stop() could end
            remove_directory(self._path)
            self._path = None
            self._cut()
            raise
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _take_over(self) -> None:
        """Go on with the children of earlier heads, and with their directory, if they had one yet."""
        self._found = asyncio.get_running_loop().create_future()
        await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._serve())
        found = await self._found
        self._path = Path(found) if found else private_directory(self._wanted)
        self._introduce()

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        assert self._path is not None, "started before"
        return SocketTransport(head, listen or self._path, keys, lasting=True)

    async def spawn(self, spec: NodeSpec) -> int:
        await self._connected.wait()
        if self._broken:
            raise LaunchError(f"node {spec.id} could not be started: {self._broken}")
        self._numbers[spec.name] = spec.incarnation
        request = next(self._requests)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending[request] = (spec, future)
        given = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.name != "needs"}
        self._write(SPAWN, request, given)  # it runs here, whatever it needs
        return await future

    def preload(self, modules: Sequence[str]) -> None:
        """Import more, now that there is time: later children find these modules, too."""
        self._preload += modules
        if self._connected.is_set() and not self._broken:
            self._write(PRELOAD, [*modules], sys.path)

    def kill(self, node: PeerId) -> None:
        for pid, child in self._children.items():
            if child == node:
                self._kill(pid)

    def _kill(self, pid: int) -> None:
        """Kill a process through the forkserver.

        Only the forkserver may kill by number: it knows that the process is not reaped yet and its number is no other's.
        """
        if (watch := self._watches.get(pid)) is not None:
            watch.kill()
        else:
            self._write(KILL, pid)

    async def holder(self, *, fork: bool) -> socket.socket | None:
        if (there := self._at_holder()) is not None or not fork:
            return there
        await self._connected.wait()
        why = self._broken
        if not why:
            request = next(self._requests)
            self._holding[request] = asked = asyncio.get_running_loop().create_future()
            self._write(HOLD, request, self._holder)
            why = await asked
        if not why and (there := self._at_holder()) is None:
            why = "the process that would hold it has ended"
        if why:
            raise LaunchError(why)
        return there

    def _at_holder(self) -> socket.socket | None:
        """Return a connection to the holder, if there is one. It listens, so this does not wait."""
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(f"\0{self._holder}")
        except OSError:
            end.close()
            return None
        return end

    def spawned(self) -> Mapping[str, int]:
        return self._numbers

    def list(self) -> dict[PeerId, int]:
        return {node: pid for pid, node in self._children.items()}

    async def leave(self) -> None:
        if self._kept is None:
            await self.stop()  # its processes hang on this one's lifeline: nothing could be left
        elif not self._stopping and self._path is not None:
            self._stopping = True
            self._writer.close()
            await self._task

    async def stop(self) -> None:
        self.abandon()
        if self._stopping or self._path is None:
            return
        self._stopping = True
        if self._kept is not None:
            await self._end_children()
        elif not self._serving:
            self._process.kill()  # it imports, which takes seconds, and has no children yet
        self._writer.close()
        await self._task
        for pid in self._orphans:
            self._kill(pid)
        for ended in [*self._orphans.values()]:
            await ended.wait()
        self._cut()
        self._broken = "the launcher was stopped"
        self._connected.set()
        remove_directory(self._path)

    async def _end_children(self) -> None:
        """Kill all children of a forkserver that stays."""
        while self._children:
            self._childless.clear()
            for pid in self._children:
                self._kill(pid)
            await self._childless.wait()

    def _cut(self) -> None:
        """Close the lifeline, which ends whatever is left."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def _execute(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a forkserver, which begins to import; return it and our end of the connection to it."""
        ours, theirs = socket.socketpair()
        if self._lifeline is None and can_watch():
            self._lifeline = Lifeline()
        ends = (theirs.fileno(), *((self._lifeline.end,) if self._lifeline is not None else ()))
        try:
            # A session of its own: signals to the head's group (Ctrl-C, a service manager's TERM) are the head's to
            # answer, which may want its workers to finish what runs.
            process = subprocess.Popen(
                (sys.executable, "-c", _PROGRAM, *(str(end) for end in (*ends, -1)[:2])),
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # a preloaded numpy would start a thread pool, which does not survive a fork
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        with contextlib.suppress(OSError):  # it has ended already; the reader is notified
            ours.sendall(frame([PRELOAD, self._preload, sys.path]))
        return process, ours

    async def _connect(self) -> None:
        """Connect to the keeper's forkserver, the present one or the next."""
        assert self._kept is not None, "a keeper has one"
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.connect(f"\0{self._kept.address}")  # the keeper listens, so this does not wait
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._serving = True  # as far as stopping it goes, which is the keeper's business

    def _introduce(self) -> None:
        """Tell the keeper's forkserver whose head this is."""
        self._write(SETUP, self.directory)
        orphans = [[*self._children[pid], pid, begun_at(pid)] for pid in self._orphans]
        self._write(KNOWN, orphans)
        self._write(PRELOAD, self._preload, sys.path)
        self._connected.set()

    async def _open(self) -> None:
        if self._kept is not None:
            await self._connect()
            self._introduce()
            return
        (self._process, ours), self._begun = self._begun or self._execute(), None
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:  # a cancellation too
            _end(self._process, ours)
            raise
        self._serving = False
        self._write(SETUP, self.directory)
        self._connected.set()
        if self._stopping:  # asked for while this one was being started
            self._writer.close()

    def _write(self, *message: Any) -> None:
        self._writer.write(frame([*message]))

    async def _serve(self) -> None:
        try:
            while await self._follow():
                await self._open()
        except OSError as error:
            self._broken = f"the forkserver cannot be started again: {error}"
            self._connected.set()

    async def _follow(self) -> bool:
        """Act on what the forkserver says until it ends; whether another is wanted then."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                self._act(*unpack(await self._reader.readexactly(length)))
        self._connected.clear()
        self._writer.close()
        status = -signal.SIGKILL if self._kept is not None else await asyncio.to_thread(self._process.wait)
        for request in [*self._pending]:
            self._fail(request, f"the forkserver exited with {status}")
        for request in [*self._holding]:
            self._held(request, f"the forkserver exited with {status}")
        self._adopt()
        if self._stopping:
            return False
        if not self._serving and status >= 0:  # it ended by itself; another would fare no better
            self._broken = f"the forkserver exited with {status} before it could serve"
            self._connected.set()
            return False
        log.error("the forkserver exited with %d; another is started, and its processes go on", status)
        return True

    def _adopt(self) -> None:
        """Watch the children of a forkserver that is gone. One that was not seen alive has ended."""
        for pid in [*self._children]:
            if pid in self._orphans:
                continue
            if pid not in self._watches:
                self._exited(pid, -signal.SIGKILL)
            else:
                self._watch_orphan(pid)

    def _watch_orphan(self, pid: int) -> None:
        """Watch a child that no forkserver watches."""
        self._orphans[pid] = asyncio.Event()
        self._watches[pid].on_end(partial(self._exited, pid, -signal.SIGKILL))

    def _exited(self, pid: int, status: int) -> None:
        """Handle the end of a child."""
        if (watch := self._watches.pop(pid, None)) is not None:
            watch.close()
        if (orphan := self._orphans.pop(pid, None)) is not None:
            orphan.set()
        node = self._children.pop(pid)
        if not self._children:
            self._childless.set()
        self._ended(node, status)

    def _act(self, tag: int, *fields: Any) -> None:
        if tag == SPAWNED:
            request, pid, begun = fields
            spec, future = self._pending.pop(request)
            self._children[pid] = spec.id
            if self._lifeline is not None or (self._kept is not None and can_watch()):
                with contextlib.suppress(ProcessLookupError):  # it has ended, as will be said
                    self._watches[pid] = ProcessWatch(pid, begun)
            if future.done():  # the caller gave up meanwhile
                self._kill(pid)
            else:
                future.set_result(pid)
        elif tag == READY:
            self._serving = True
            for failure in fields[0]:
                log.error("preloading failed for %s", failure)
        elif tag == EXITED:
            self._exited(*fields)
        elif tag == CHILDREN:
            self._meet(*fields)
        elif tag == FAILED:
            self._fail(*fields)
        elif tag == HOLDS:
            self._held(*fields)

    def _meet(
        self,
        directory: str,
        own: Sequence[ChildLine],
        others: Sequence[ChildLine],
        ended: Sequence[tuple[str, int, int]],
    ) -> None:
        """Take over what lives of earlier heads' children; ``others`` are those of a forkserver before this one."""
        if self._found is None or self._found.done():
            return  # the keeper's next forkserver, which knows nothing
        gone = [(PeerId(name, incarnation), status) for name, incarnation, status in ended]
        for name, incarnation, pid, begun in (*own, *others):
            try:
                self._watches[pid] = ProcessWatch(pid, begun)
                self._children[pid] = PeerId(name, incarnation)
            except ProcessLookupError:
                gone.append((PeerId(name, incarnation), -signal.SIGKILL))
        for node, status in gone:
            asyncio.get_running_loop().call_soon(self._ended, node, status)
        for _, _, pid, _ in others:
            if pid in self._children:
                self._watch_orphan(pid)
        self._found.set_result(directory)

    def _ended(self, node: PeerId, status: int) -> None:
        """Clean up after a process that ended.

        A killed process could not remove its sockets and its note, and nodes may die for as long as the cluster lives.
        """
        if self._path is not None:
            remove_socket(self._path, node)
            note_of(self._path, node).unlink(missing_ok=True)
        self._on_exit(node, status)

    def _held(self, request: int, why: str) -> None:
        if not (asked := self._holding.pop(request)).done():  # else the caller gave up meanwhile
            asked.set_result(why)

    def _fail(self, request: int, text: str) -> None:
        spec, future = self._pending.pop(request)
        if not future.done():
            future.set_exception(LaunchError(f"node {spec.id} could not be started: {text}"))


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    """Kill a forkserver that has no children, and wait for its end."""
    ours.close()
    process.kill()
    process.wait()

"""The check whether a grammar compiles, in a process of its own.

A hostile grammar may take long or much memory before the library's limits stop it, so a child process has limits of both
(``checker_process.py``). One is tried at a time, with a short limit at first; tenants take turns (``compile_queue.py``). No
event loop waits meanwhile, and the gateway never imports the library.

Frames on the socket are a length (8 bytes, little-endian) and a MessagePack value. The child ends with its socket.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from ...policies.sweep.compile_queue import FIRST_TRY, LATER_TRY, OWN, CompileQueue

SECONDS = (0.05, 1.0)  # of processor for a first try of a grammar, and for a second one; the library's limits are narrower
MOST, MOST_OF_ONE = 512, 256  # grammars that wait: of all tenants, of one
LONGEST_WAIT = 60.0  # seconds of the clock until a child counts as stuck
KEPT = 4096  # outcomes that are remembered
_PROGRAM = "import sys; sys.path[:] = {path!r}; from blockwright.api.constraints.checker_process import main; main()"
T = TypeVar("T")


def send_value(end: socket.socket, value: Any) -> None:
    """Send a value as a frame."""
    data = msgpack.packb(value, unicode_errors="surrogatepass")
    end.sendall(len(data).to_bytes(8, "little") + data)


def receive_value(end: socket.socket) -> Any:
    """Return the next value; raise EOFError at the end of the connection."""
    return msgpack.unpackb(_exactly(end, int.from_bytes(_exactly(end, 8), "little")), unicode_errors="surrogatepass")


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = end.recv(min(count - len(data), 1 << 20))
        if not got:
            raise EOFError
        data += got
    return data


def hash_of_tokens(tokens: Any, special: set[int]) -> bytes:
    """Return a digest of the tokens' bytes, without the special ones."""
    digest = hashlib.blake2b(digest_size=16)
    for id, text in enumerate(tokens):
        if id not in special:
            digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()


class CheckerFull(Exception):
    """No room for another grammar. ``queue``: the one that is full, as in ``CompileQueue.full``; ``waiting`` in it."""

    def __init__(self, queue: str, waiting: int) -> None:
        super().__init__(queue)
        self.queue, self.waiting = queue, waiting


class _OpenGrammar:
    """A grammar that waits for its outcome, and how many requests wait for that."""

    __slots__ = ("form", "outcome", "text", "waiters")

    def __init__(self, form: str, text: str) -> None:
        self.form, self.text = form, text
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiters = 0


class GrammarChecker:
    """The parent's side. The child is started for the first grammar; one question runs at a time."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        self._child: _CheckerChild | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._faults: OrderedDict[bytes, str] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int], TableFacts] = OrderedDict()
        self._queue = CompileQueue(weights or {}, MOST, MOST_OF_ONE)
        self._questions: dict[bytes, int] = {}  # being asked, by grammar -> number
        self._open: dict[int, tuple[bytes, _OpenGrammar]] = {}
        self._numbers = count()
        self._pump: asyncio.Task[None] | None = None

    async def fault(self, form: str, text: str, tenant: str = "") -> str:
        """Return why a grammar cannot be compiled; empty: it can. Raise CheckerFull if too many wait."""
        key = hashlib.blake2b(f"{form} {text}".encode(errors="surrogatepass"), digest_size=16).digest()
        if key in self._faults:
            self._faults.move_to_end(key)
            return self._faults[key]
        if (number := self._questions.get(key)) is None:
            number = self._add(key, form, text, tenant)
        question = self._open[number][1]
        question.waiters += 1
        try:
            return await asyncio.shield(question.outcome)
        finally:
            question.waiters -= 1
            if not question.waiters and not question.outcome.done():
                self._queue.remove(number)  # the clients have gone
                self._close(number)

    def _add(self, key: bytes, form: str, text: str, tenant: str) -> int:
        if full := self._queue.full(tenant):
            raise CheckerFull(full, self._queue.waiting_of(tenant) if full == OWN else self._queue.waiting)
        number = self._questions[key] = next(self._numbers)
        self._open[number] = key, _OpenGrammar(form, text)
        self._queue.add(number, tenant)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._ask_all())
        return number

    def _close(self, number: int) -> None:
        key, _ = self._open.pop(number)
        self._questions.pop(key, None)

    async def _ask_all(self) -> None:
        """Ask the child about all that wait."""
        while (taken := self._queue.take()) is not None:
            number, tenant, attempt = taken
            key, question = self._open[number]
            seconds = SECONDS[attempt]
            try:
                fault, used = await self._run(lambda: self._try(question.form, question.text, seconds))  # noqa: B023
            except Exception as error:
                fault, used = f"cannot be tried ({type(error).__name__}: {error})", seconds
            self._queue.charge(tenant, attempt, used)
            if number not in self._open:
                continue
            if fault is None and attempt == FIRST_TRY:
                self._queue.add(number, tenant, LATER_TRY)
                continue
            found = fault if fault is not None else "takes too long to compile, or too much memory; give a simpler one"
            self._faults[key] = found
            while len(self._faults) > KEPT:
                self._faults.popitem(last=False)
            self._close(number)
            question.outcome.set_result(found)

    async def table(self, file: Path, size: int, special: Sequence[int], bytes_of: Callable[[int], bytes]) -> TableFacts:
        """Return the facts of a tokenizer's table. ``bytes_of``: a token's bytes in answers, with which it must agree."""
        key = str(file), size
        if key not in self._tables:
            self._tables[key] = await self._run(lambda: self._table(file, size, special, bytes_of))
            while len(self._tables) > KEPT:
                self._tables.popitem(last=False)
        return self._tables[key]

    def close(self) -> None:
        """End the child."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._child is not None:
            self._child.close()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _try(self, form: str, text: str, seconds: float) -> tuple[str | None, float]:
        """Return the fault of a grammar, None if it needs longer or more memory, and the processor time of the try."""
        answer = self._ask(["compile", form, text, seconds])
        return (None, seconds) if answer is None else (answer[0], answer[1])

    def _table(self, file: Path, size: int, special: Sequence[int], bytes_of: Callable[[int], bytes]) -> TableFacts:
        answer = self._ask(["table", str(file), size, sorted(special)])
        if answer is None:
            return TableFacts(f"{file} takes too long to read, or too much memory, so answers cannot be constrained")
        fault, digest, hidden, theirs = answer
        if not fault and theirs != hash_of_tokens(map(bytes_of, range(size)), {*special}):
            fault = (
                f"the tokenizer is built otherwise than {file} has it, so answers cannot be constrained; set "
                "tokenizer_class to TokenizersBackend in tokenizer_config.json, or leave the constraint out"
            )
        return TableFacts(fault, digest, hidden)

    def _ask(self, question: list[Any]) -> Any:
        """Return the child's answer; None: it has ended over the question."""
        if self._child is None or self._child.ended:
            self._child = _CheckerChild()
        return self._child.ask(question)


class TableFacts:
    """A tokenizer's table: the ``digest`` of its file, and ``hidden`` tokens by other files. ``fault``: it has none."""

    __slots__ = ("digest", "fault", "hidden")

    def __init__(self, fault: str = "", digest: bytes = b"", hidden: Sequence[int] = ()) -> None:
        self.fault = fault
        self.digest = digest
        self.hidden = list(hidden)


class _CheckerChild:
    """One child process and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            (sys.executable, "-c", _PROGRAM.format(path=sys.path), str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the library's own words at a limit
            start_new_session=True,  # Ctrl-C is the server's to answer
        )
        theirs.close()
        ours.settimeout(LONGEST_WAIT)
        self._end = ours
        self._lock = threading.Lock()
        self.ended = False
        self.close = weakref.finalize(self, _end, process, ours)

    def ask(self, question: list[Any]) -> Any:
        with self._lock:
            try:
                send_value(self._end, question)
                return receive_value(self._end)
            except (OSError, EOFError):
                self.ended = True
                self.close()
                return None


def _end(process: subprocess.Popen[bytes], end: socket.socket) -> None:
    end.close()
    process.kill()
    process.wait()

"""The check whether a grammar compiles, in a process of its own.

A hostile grammar may take long or much memory before the library's limits stop it. The child forks for each, and the copy
has limits of both. One is tried at a time, with a short limit at first; tenants take turns (``compile_queue.py``). No event
loop waits meanwhile, and the gateway never imports the library.

Frames on the socket are a length (8 bytes, little-endian) and a MessagePack value. The child ends with its socket.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from ...policies.sweep.compile_queue import AGAIN, FIRST, OWN, CompileQueue
from .keywords import LISTS, MAPS, ONE

SECONDS = (0.05, 1.0)  # of processor for a first try of a grammar, and for a second one; the library's limits are narrower
MOST, MOST_OF_ONE = 512, 256  # grammars that wait: of all tenants, of one
LONGEST_WAIT = 60.0  # seconds of the clock until a child counts as stuck
MEMORY = 2 << 30  # bytes of address space
MOST_INNER = 64  # parts of a refused schema that are looked at for the fault
INNER_SECONDS = 0.02  # of processor after which no further part is looked at
NICE = 5  # of the child: who waits for tokens goes before who waits for a grammar
TRIED = 8  # tokens that a grammar is tried with, of which not all may be slow
SLOWEST = 0.01  # seconds of processor for a mask; the device thread of a worker makes one for each token
END = 256  # the end token beside the bytes
KEPT = 4096  # outcomes that are remembered
LONGEST_FAULT = 2000  # characters of a fault
TABLE_SECONDS = 30.0  # of processor for a tokenizer's table
_OVERLAP = "the keyword oneOf has alternatives that a value may fit at once; let them exclude each other, or use anyOf"
_PROGRAM = "import sys; sys.path[:] = {path!r}; from blockwright.api.constraints.checker import main; main()"
T = TypeVar("T")


def _send(end: socket.socket, value: Any) -> None:
    data = msgpack.packb(value, unicode_errors="surrogatepass")
    end.sendall(len(data).to_bytes(8, "little") + data)


def _receive(end: socket.socket) -> Any:
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
            if fault is None and attempt == FIRST:
                self._queue.add(number, tenant, AGAIN)
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
        if not fault and theirs != _hash_of(map(bytes_of, range(size)), {*special}):
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
                _send(self._end, question)
                return _receive(self._end)
            except (OSError, EOFError):
                self.ended = True
                self.close()
                return None


def _end(process: subprocess.Popen[bytes], end: socket.socket) -> None:
    end.close()
    process.kill()
    process.wait()


def main() -> None:
    """Run a child: answer questions until the connection closes. One that takes too long ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = socket.socket(fileno=int(sys.argv[1]))
    os.nice(NICE)
    answers = _Answers()
    try:
        while True:
            question = _receive(end)
            if question[0] == "compile":
                answer = _apart(answers, question, question.pop())
            else:
                signal.setitimer(signal.ITIMER_PROF, TABLE_SECONDS)
                answer = answers.answer(question)
                signal.setitimer(signal.ITIMER_PROF, 0)
            _send(end, answer)
    except (OSError, EOFError):
        os._exit(0)


def _apart(answers: _Answers, question: list[Any], seconds: float) -> list[Any]:
    """Try a grammar in a copy of this process; return its fault, None if the copy has ended by a limit, and the seconds."""
    answers.prepare()
    ours, theirs = os.pipe()
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not (copy := os.fork()):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        os.write(theirs, msgpack.packb(answers.answer(question)[0][:LONGEST_FAULT]))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(copy, 0)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    return [msgpack.unpackb(answer) if answer else None, used]


class _Answers:
    """The child's answers. Its own vocabulary is the bytes, for a language is the same in every vocabulary."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def prepare(self) -> None:
        """Make the vocabulary, if the library is installed."""
        from ...gpu.sampling.grammars import GrammarError, tokenizer_of
        from ...gpu.weights.token_bytes import TokenBytes
        from ...policies.plan.grammar import TokenVocabulary

        if self._tokenizer is None:
            alphabet = TokenBytes([*(bytes([i]) for i in range(END)), b""], b"")
            with suppress(GrammarError):
                self._tokenizer = tokenizer_of(TokenVocabulary(file="", digest=b"", size=END + 1, ends=[END]), alphabet)

    def answer(self, question: list[Any]) -> list[Any]:
        match question:
            case ["compile", str(form), str(text)]:
                return [self._fault(form, text)]
            case ["table", str(file), int(size), list(special)]:
                return _table(Path(file), size, special)
        raise EOFError

    def _fault(self, form: str, text: str) -> str:
        from ...gpu.sampling.grammars import GrammarError, compiled, require

        self.prepare()
        try:
            require()
            return _trial(compiled(form, text, self._tokenizer))
        except GrammarError as error:
            found = str(error), ""
            if self._tokenizer is None:
                return found[0]  # the library is not installed
            began = time.process_time()
            for path, inner in _inner(text) if form == "json" else ():
                if time.process_time() - began > INNER_SECONDS:
                    break
                try:
                    compiled(form, inner, self._tokenizer)
                except GrammarError as other:
                    found = str(other), path
            why = _OVERLAP if found[0].startswith("oneOf ") else found[0]
            return f"{why} (at {found[1]})" if found[1] else why


def _trial(matcher: Any) -> str:
    """Return why the masks of a grammar cannot be made, or not fast enough; "": its first few can.

    A grammar may compile and reach the library's limits, or cost a moment, with the first token.
    """
    fastest = SLOWEST
    for _ in range(TRIED):
        began = time.process_time()
        mask = matcher.compute_bitmask()
        fastest = min(fastest, time.process_time() - began)
        if matcher.is_error():
            return "its masks cost more than the limits allow; send a simpler one"
        first = next((8 * i + (byte & -byte).bit_length() - 1 for i, byte in enumerate(mask) if byte), END)
        if first == END:
            return ""
        matcher.consume_token(first)
    return "" if fastest < SLOWEST else "its masks take too long to make; send a simpler one"


def _inner(text: str) -> Iterator[tuple[str, str]]:
    """Yield schemas inside a schema with their paths, the outer ones first, each with the definitions of the whole.

    One that refers to another part of the whole is left out, with what is inside. Few are yielded, because each is compiled.
    """
    whole = json.loads(text)
    common = {key: whole[key] for key in ("$defs", "definitions") if isinstance(whole, dict) and key in whole}
    level = [("", whole)]
    for _ in range(MOST_INNER):
        if not level:
            return
        path, schema = level.pop(0)
        if path and isinstance(schema, dict):
            yield path, json.dumps({**common, **schema})
        if isinstance(schema, list):
            level += [(f"{path}/{i}", inner) for i, inner in enumerate(schema)]
        elif isinstance(schema, dict):
            for key, inner in schema.items():
                if key in MAPS:
                    level += [(f"{path}/{key}/{name}", one) for name, one in inner.items()]
                elif key in ONE or key in LISTS:
                    level.append((f"{path}/{key}", inner))


def _table(file: Path, size: int, special: list[int]) -> list[Any]:
    from ...gpu.errors import CheckpointError
    from ...gpu.weights.token_bytes import token_bytes

    try:
        found = token_bytes(file)
    except CheckpointError as error:
        return [str(error), b"", [], b""]
    hidden = [id for id in special if id < len(found.tokens) and found.tokens[id]]
    tokens = (found.tokens + [b""] * size)[:size]
    return ["", found.digest, hidden, _hash_of(tokens, {*special})]


def _hash_of(tokens: Any, special: set[int]) -> bytes:
    """Return a digest of the tokens' bytes, without the special ones."""
    digest = hashlib.blake2b(digest_size=16)
    for id, text in enumerate(tokens):
        if id not in special:
            digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()

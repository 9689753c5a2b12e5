"""The child process of the grammar checker: compiles a grammar in a copy of itself, and reads tables of tokens.

It forks for each grammar, with limits of processor time and memory. It alone has the library.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from .checker import hash_of_tokens, receive_value, send_value
from .keywords import LISTS, MAPS, ONE

MEMORY = 2 << 30  # bytes of address space
MOST_INNER = 64  # parts of a refused schema that are looked at for the fault
INNER_SECONDS = 0.02  # of processor after which no further part is looked at
NICE = 5  # of the child: who waits for tokens goes before who waits for a grammar
TRIED = 8  # tokens that a grammar is tried with, of which not all may be slow
SLOWEST = 0.01  # seconds of processor for a mask; the device thread of a worker makes one for each token
END = 256  # the end token beside the bytes
LONGEST_FAULT = 2000  # characters of a fault
TABLE_SECONDS = 30.0  # of processor for a tokenizer's table
_OVERLAP = "the keyword oneOf has alternatives that a value may fit at once; let them exclude each other, or use anyOf"


def main() -> None:
    """Run a child: answer questions until the connection closes. One that takes too long ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = socket.socket(fileno=int(sys.argv[1]))
    os.nice(NICE)
    answers = CheckerAnswers()
    try:
        while True:
            question = receive_value(end)
            if question[0] == "compile":
                answer = _apart(answers, question, question.pop())
            else:
                signal.setitimer(signal.ITIMER_PROF, TABLE_SECONDS)
                answer = answers.answer(question)
                signal.setitimer(signal.ITIMER_PROF, 0)
            send_value(end, answer)
    except (OSError, EOFError):
        os._exit(0)


def _apart(answers: CheckerAnswers, question: list[Any], seconds: float) -> list[Any]:
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


class CheckerAnswers:
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
    return ["", found.digest, hidden, hash_of_tokens(tokens, {*special})]

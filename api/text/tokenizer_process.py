"""A large tokenizer in a process of its own.

The ``tokenizers`` package keeps the interpreter lock while it builds a tokenizer, 0.5 to 1 s for 128,000 tokens. No event
loop of the process would run meanwhile. So the tokenizer is built, and encodes texts, in a child. The vocabulary and the
decoder, which every token of an answer needs, are copied to the parent in pieces.

Frames on the sockets are a length (8 bytes, little-endian) and a MessagePack value. The child ends with its sockets, however
the parent ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import msgpack
from tokenizers import Tokenizer

from .encoder import Encoder, GivesUp
from .tokenizer_build import TokenizerParts, WrongSettings, build_tokenizer

LARGE = 1 << 18  # characters of a tokenizer.json; a smaller one, however dense, is built in about 0.05 s
_CALLS = 2  # texts encoded at a time
_PIECE = 20_000  # tokens of the vocabulary in a frame; to read them takes some milliseconds
_PROGRAM = "import sys; sys.path[:] = {path!r}; from blockwright.api.text.tokenizer_process import main; main()"
_EMPTY = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}


class TokenizerEnded(Exception):
    """A tokenizer's process that ended, twice, while it encoded a text."""


def _send(end: socket.socket, value: Any) -> None:
    data = msgpack.packb(value, unicode_errors="surrogatepass")
    end.sendall(len(data).to_bytes(8, "little") + data)


def _receive(end: socket.socket) -> Any:
    """Return the next value; raise EOFError at the end of the connection."""
    data = _exactly(end, int.from_bytes(_exactly(end, 8), "little"))
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False, use_list=True)


def _exactly(end: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = end.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


class TokenizerProcess:
    """The parent's side, with the interface of ``Encoder``.

    Starts the child, and blocks until the tokenizer is built. Raise WrongSettings, and Exception with the package's words
    for a tokenizer.json that it cannot read. A child that ends is replaced.
    """

    quick = False  # even a short text waits for another process

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._child = _TokenizerChild(parts)
        facts = self._child.facts
        self.added = {id: (text, special) for id, text, special in facts["added"]}
        self.decoder = facts["decoder"]
        self.size: int = facts["size"]
        self.special = frozenset(facts["special"])
        self.named = facts["named"]
        self.notes = tuple(facts["notes"])
        self._tokens = self._child.vocabulary
        self._hidden = {text for text, special in self.added.values() if special}
        self._decoder = Tokenizer.from_str(json.dumps({**_EMPTY, "decoder": self.decoder or None})).decoder

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    def token(self, id: int) -> str | None:
        return self._tokens.get(id)

    def id_of(self, token: str) -> int | None:
        return next((id for id, text in self._tokens.items() if text == token), None)

    def ids(self, text: str, *, special: bool) -> list[int]:
        found: list[int] = self._ask("ids", text, special)
        return found

    def places(self, text: str, *, special: bool) -> list[tuple[int, int, int, bool]]:
        return [(id, start, end, added) for id, start, end, added in self._ask("places", text, special)]

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        known = [token for token in map(self._tokens.get, ids) if token is not None]
        shown = known if special else [token for token in known if token not in self._hidden]
        return self._decoder.decode(shown) if self._decoder is not None else " ".join(shown)

    def _ask(self, kind: str, text: str, special: bool) -> Any:
        """Return the child's answer; start another child once if it has ended."""
        for _ in range(2):
            child = self._child
            try:
                return child.ask([kind, text, special])
            except (OSError, EOFError):
                with self._lock:
                    if self._child is child:
                        child.close()
                        self._child = _TokenizerChild(self._parts)
        raise TokenizerEnded


class _TokenizerChild:
    """One child process and the connections to it."""

    def __init__(self, parts: TokenizerParts) -> None:
        pairs = [socket.socketpair() for _ in range(_CALLS)]
        theirs = [there.fileno() for _, there in pairs]
        # A session of its own: Ctrl-C is the server's to answer, which may want answers that run to finish.
        process = subprocess.Popen(
            (sys.executable, "-c", _PROGRAM.format(path=sys.path), *map(str, theirs)),
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _, there in pairs:
            there.close()
        self.pid = process.pid
        ends = [ours for ours, _ in pairs]
        self.close = weakref.finalize(self, _end, process, ends)
        self._free: queue.LifoQueue[socket.socket] = queue.LifoQueue()
        try:
            self.facts, self.vocabulary = _build_there(ends[0], parts)
        except BaseException:
            self.close()
            raise
        for end in ends:
            self._free.put(end)

    def ask(self, question: list[Any]) -> Any:
        end = self._free.get()
        try:
            _send(end, question)
            answer, error = _receive(end)
        finally:
            self._free.put(end)
        if error is not None:
            raise GivesUp(error)
        return answer


def _build_there(end: socket.socket, parts: TokenizerParts) -> tuple[dict[str, Any], dict[int, str]]:
    """Have the child build the tokenizer; return facts about it, and its vocabulary."""
    try:
        _send(end, [*astuple(parts)])
        kind, facts = _receive(end)
        if kind != "built":
            raise (WrongSettings if kind == "wrong" else Exception)(facts)
        vocabulary: dict[int, str] = {}
        while piece := _receive(end):
            vocabulary.update(zip(*piece, strict=True))
        facts["added"] = []
        while piece := _receive(end):
            facts["added"] += piece
    except (OSError, EOFError):
        raise Exception("its process ended, perhaps for want of memory") from None
    return facts, vocabulary


def _end(process: subprocess.Popen[bytes], ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()
    process.kill()
    process.wait()


def main() -> None:
    """Run a child: build the tokenizer that arrives on the first socket, then answer on all of them until they close."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends = [socket.socket(fileno=int(word)) for word in sys.argv[1:]]
    with contextlib.suppress(OSError, EOFError):
        encoder = _built(ends[0])
        if encoder is not None:
            for end in ends[1:]:
                threading.Thread(target=_answer, args=(encoder, end), daemon=True).start()
            _answer(encoder, ends[0])
    os._exit(0)  # threads may be in the middle of a text


def _built(end: socket.socket) -> Encoder | None:
    """Build the tokenizer that arrives, and send facts about it, and its vocabulary; None: a reason was sent instead."""
    try:
        built = build_tokenizer(TokenizerParts(*_receive(end)))
    except WrongSettings as error:
        _send(end, ["wrong", str(error)])
        return None
    except Exception as error:  # the package raises bare Exception
        _send(end, ["error", str(error)])
        return None
    tokenizer = built.tokenizer
    encoder = Encoder(tokenizer)
    added = [(id, text, special) for id, (text, special) in encoder.added.items()]
    facts = {"decoder": encoder.decoder, "size": encoder.size}
    _send(end, ["built", {**facts, "special": [*built.special], "named": built.named, "notes": built.notes}])
    vocabulary = [(id, token) for token, id in tokenizer.get_vocab().items()]
    vocabulary += [(id, text) for id, text, _ in added]  # an added token hides another one with its id
    for start in range(0, len(vocabulary), _PIECE):
        _send(end, [*zip(*vocabulary[start : start + _PIECE], strict=True)])
    _send(end, [])
    for start in range(0, len(added), _PIECE):
        _send(end, added[start : start + _PIECE])
    _send(end, [])
    return encoder


def _answer(encoder: Encoder, end: socket.socket) -> None:
    """Answer questions until the parent closes the connection, then end the process."""
    try:
        while True:
            kind, text, special = _receive(end)
            ask = encoder.ids if kind == "ids" else encoder.places
            try:
                _send(end, [ask(text, special=special), None])
            except GivesUp as error:
                _send(end, [None, str(error)])
    except (OSError, EOFError):
        os._exit(0)

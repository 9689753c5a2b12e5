"""Detokenizing: tokens to text, piece by piece, at linear cost and without partial characters.

The bytes of an incomplete character are held back; bytes that no later token can complete become U+FFFD. With a byte-level
vocabulary (Llama 3, Qwen, GPT-2) the pieces join to exactly the full decode. With byte fallback (Llama 1 and 2) they do for
valid text. The full decode also spoils the valid characters beside an invalid byte; here these were sent already.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """The text state of one sequence."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens complete; may be empty."""

    def flush(self) -> str:
        """End the sequence; return the bytes held back as replacement characters."""


class ByteDetokenizer:
    """A detokenizer for vocabularies of byte strings: a look-up and an incremental UTF-8 decoder."""

    __slots__ = ("_decode", "_pieces")

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces  # token id -> bytes; empty for hidden tokens
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, tokens: Sequence[int]) -> str:
        pieces = self._pieces
        if len(tokens) == 1:
            return self._decode(pieces[tokens[0]])
        return self._decode(b"".join([pieces[token] for token in tokens]))

    def flush(self) -> str:
        return self._decode(b"", True)


class WindowDetokenizer:
    """A detokenizer for every other decoder: a token adds the difference between decoding with and without it.

    Decoding starts from a window of the latest tokens. ``decode``: ids to text without special tokens. ``byte_of``: the byte
    of a byte-fallback token, None for others. ``context``: the ids that the text continues (empty: the text starts afresh,
    so a leading space is stripped).
    """

    __slots__ = ("_byte_of", "_bytes", "_context", "_context_length", "_decode", "_held", "_hidden")

    _LONGEST = 4  # bytes of a character: a token that yields no text even after three more never will

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        byte_of: Callable[[int], int | None],
        hidden: frozenset[int],
        context: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._byte_of = byte_of
        self._hidden = hidden
        self._held: list[int] = []
        self._bytes = bytearray()
        self._set_context([t for t in context[-16:] if t not in hidden][-8:])

    def push(self, tokens: Sequence[int]) -> str:
        return "".join([self._one(token) for token in tokens if token not in self._hidden])

    def flush(self) -> str:
        return self._end_bytes() + (self._emit() if self._held else "")

    def _one(self, token: int) -> str:
        byte = self._byte_of(token)
        if byte is None:
            before = self._end_bytes()
            self._held.append(token)
            text = self._decode(self._context + self._held)
            if text.endswith("\ufffd") and len(self._held) < self._LONGEST:
                return before
            return before + self._emit(text)
        before = self._emit() if self._held else ""
        self._set_context([token])
        return before + self._byte(byte)

    def _byte(self, byte: int) -> str:
        self._bytes.append(byte)
        spoilt = ""
        while self._bytes:
            try:
                text = self._bytes.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    return spoilt
                drop = max(1, len(self._bytes) - 1)  # only the newest byte can begin another character
                spoilt += "\ufffd" * drop
                del self._bytes[:drop]
            else:
                self._bytes.clear()
                return spoilt + text
        return spoilt

    def _end_bytes(self) -> str:
        count = len(self._bytes)
        self._bytes.clear()
        return "\ufffd" * count

    def _emit(self, text: str | None = None) -> str:
        text = self._decode(self._context + self._held) if text is None else text
        added = text[self._context_length :]
        # a token without text is not enough context: a space after it would be taken for a leading one
        self._set_context(self._held if added else (self._context + self._held)[-8:])
        self._held = []
        return added

    def _set_context(self, tokens: list[int]) -> None:
        self._context = tokens
        self._context_length = len(self._decode(tokens)) if tokens else 0

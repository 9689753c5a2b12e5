"""The scanner of turns that are free until they open a call: which region of the turn a token leads to.

It reads the texts of a turn as the reader of answers does (``api/text/turn/reader.py``), but as bytes, and stops where a
call is opened; from there on a matcher holds the call. A token may end behind the text that opens a call. Where its rest
could not begin the call, it is forbidden. In all other places every token is allowed, and needs no mask.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .free_turn import BETWEEN, CONTENT, THINKING, FreeTurn

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# region; whether the turn has neither a text nor a call; the beginning of a delimiter that was read
Place = tuple[str, bool, bytes]
CALLING: Place = ("call", False, b"")
LOST: Place = ("lost", False, b"")  # a call was opened by a token whose rest cannot begin it
MOST_STEPS = 1 << 16  # that are remembered
BLANKS = b" \n\t\r"
_APART = b"\xff"  # in no text


class _Delimiters:
    """The texts that are looked for in one region. ``begun``: finds a byte with which one of them begins."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        ordered = sorted({*texts}, key=len, reverse=True)
        firsts = b"".join(b"\\x%02x" % byte for byte in {text[0] for text in ordered})
        self.begun = re.compile(b"[%s]" % firsts if firsts else rb"(?!)").search
        self._pattern = re.compile(b"|".join(map(re.escape, ordered)) or rb"(?!)")
        self._beginnings = {text[:end] for text in ordered for end in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def find(self, text: bytes) -> tuple[int, bytes]:
        """Return the place of the first delimiter, and the delimiter; else where one may have begun, and nothing.

        Of several in one place it is the longest, which may still be coming.
        """
        found = self._pattern.search(text)
        first = 0 if found is None else found.start()
        begun = range(max(first, len(text) - self._longest), len(text))
        end = next((start for start in begun if text[start:] in self._beginnings), len(text))
        return (found.start(), found[0]) if found is not None and end > found.start() else (end, b"")


class _CallStart:
    """A text that opens calls, as the matcher has it. ``works``: it does begin one."""

    def __init__(self, text: bytes, tokenizer: LLTokenizer, matcher: LLMatcher) -> None:
        self.tokens: list[int] = tokenizer.tokenize_bytes(text)
        self.matcher = matcher.deep_copy()
        self.works = self.matcher.try_consume_tokens(self.tokens) == len(self.tokens)


class TokensByBytes:
    """The tokens of a vocabulary by their bytes."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._by_first: dict[int, list[int]] = {}
        self.calling: list[int] = []  # tokens that have a blank, and a parenthesis that is not their end
        for id, token in enumerate(tokens):
            if token:
                self._by_first.setdefault(token[0], []).append(id)
                if b"(" in token[:-1] and not {*BLANKS}.isdisjoint(token):
                    self.calling.append(id)
        self._ends = np.cumsum([len(token) + 1 for token in tokens])
        self._joined = _APART.join(tokens) + _APART

    def beginning(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that begin with a text and go on."""
        for id in self._by_first.get(text[0], ()):
            if self.tokens[id].startswith(text) and len(self.tokens[id]) > len(text):
                yield id

    def having(self, texts: Iterable[bytes]) -> list[int]:
        """Return the tokens that have one of these texts and go on behind it."""
        found = re.finditer(b"|".join(map(re.escape, texts)), self._joined)
        ends = [one.end() for one in found if self._joined[one.end()] != _APART[0]]
        return sorted({int(id) for id in np.searchsorted(self._ends, ends, side="right")})


class TurnScanner:
    """The scanner of one compiled grammar (see the module).

    ``hidden``: tokens without a text. ``matcher``: of a call, before its first token.
    """

    def __init__(
        self, turn: FreeTurn, index: TokensByBytes, hidden: Iterable[int], tokenizer: LLTokenizer, matcher: LLMatcher
    ) -> None:
        self._index, self._tokens = index, index.tokens
        self._tokenizer, self._matcher = tokenizer, matcher
        self._ahead, self._listed = turn.ahead.encode(), turn.listed
        self.lasts = turn.lasts
        self._special = dict.fromkeys(hidden, b"") | {int(id): text.encode() for id, text in turn.said.items()}
        opens, closes = map(_encoded, turn.thinking)
        begins, ends = map(_encoded, turn.content)
        self._calls, self._starts = _encoded(turn.calls), _encoded(turn.starts)
        self._regions = dict.fromkeys(begins, CONTENT) | dict.fromkeys(opens, THINKING) | dict.fromkeys(self._calls, "call")
        self._framed = bool(begins)
        self._delimiters = {
            BETWEEN: _Delimiters([*self._regions, *(ends if not begins else ())]),
            THINKING: _Delimiters(closes),
            CONTENT: _Delimiters(ends),
        }
        self._openings: dict[bytes, _CallStart] = {}
        self._steps: dict[tuple[Place, int], tuple[Place, tuple[int, ...]]] = {}
        self._forbidden: dict[Place, np.ndarray] = {}
        self._whole = index.having([*self._calls, *self._starts])
        self._calm: set[Place] = {(region, False, b"") for region in self._delimiters}
        self.begin: Place = (turn.region, turn.fresh and bool(turn.starts), turn.held.encode())
        self.behind_call: Place = (BETWEEN, False, b"")
        self.behind_end: Place = (CONTENT if self._framed else BETWEEN, False, b"")  # of a call that lasts
        self._prepare()

    def _prepare(self) -> None:
        """Make what most turns need, so that no draw waits for it."""
        for fresh in {self.begin[1], False}:
            for held in [b"", *(text[:end] for text in self._calls for end in range(1, len(text)))]:
                self.forbidden((BETWEEN, fresh, held))

    def step(self, place: Place, token: int) -> tuple[Place, tuple[int, ...]]:
        """Return the place behind a token, and the tokens that the matcher of a call begins with if it opened one."""
        if place in self._calm and token not in self._special and not self._delimiters[place[0]].begun(self._tokens[token]):
            return place, ()  # most tokens of a text
        found = self._steps.get((place, token))
        if found is None:
            if len(self._steps) >= MOST_STEPS:
                self._steps.clear()
            found = self._steps[place, token] = self._moved(place, token)
        return found

    def _moved(self, place: Place, token: int) -> tuple[Place, tuple[int, ...]]:
        text = self._special[token] if token in self._special else self._tokens[token]
        if not text or place is LOST:
            return place, ()
        region, fresh, held = place
        buffer = held + text
        while True:
            if region == BETWEEN and fresh and self._starts:
                buffer, opening, waits = self._started(buffer)
                if opening:
                    return self._opened(opening, buffer[len(opening) :])
                if waits:
                    return (region, fresh, buffer), ()
            end, delimiter = self._delimiters[region].find(buffer)
            if region == CONTENT or (region == BETWEEN and not self._framed):
                fresh = fresh and not buffer[:end].decode(errors="replace").strip()
            buffer = buffer[end + len(delimiter) :]
            if not delimiter:
                return (region, fresh, buffer), ()
            region = self._regions.get(delimiter, BETWEEN) if region == BETWEEN else BETWEEN
            if region == "call":
                return self._opened(self._ahead, buffer)

    def _started(self, buffer: bytes) -> tuple[bytes, bytes, bool]:
        """Return what follows the blanks that begin a turn, the start of a call there, and whether one may be coming."""
        text, _ = utf_8_decode(buffer, "replace", False)
        buffer = buffer[len(text[: len(text) - len(text.lstrip())].encode()) :]
        if self._listed and len(buffer) > 1 and buffer[:1] == self._starts[0][:1]:
            buffer = buffer[:1] + buffer[1:].lstrip(BLANKS)
        opening = next((start for start in self._starts if buffer.startswith(start)), b"")
        waits = any(start.startswith(buffer) for start in self._starts) or not text.strip()
        return buffer, opening, waits and not opening

    def _opened(self, opening: bytes, rest: bytes) -> tuple[Place, tuple[int, ...]]:
        """Return the place behind a text that opens a call with its rest, and the tokens of both for the matcher."""
        if (at := self._openings.get(opening)) is None:
            at = self._openings[opening] = _CallStart(opening, self._tokenizer, self._matcher)
        tokens: list[int] = self._tokenizer.tokenize_bytes(rest) if rest else []
        if not at.works or b"".join(self._tokens[token] for token in tokens) != rest:
            return LOST, ()
        if tokens and at.matcher.validate_tokens(tokens) < len(tokens):
            return LOST, ()
        return CALLING, (*at.tokens, *tokens)

    def matcher(self, begun: Sequence[int]) -> LLMatcher:
        """Return the matcher of a call that begins with these tokens."""
        made = self._matcher.deep_copy()
        made.consume_tokens([*begun])
        return made

    def forbidden(self, place: Place) -> np.ndarray:
        """Return the tokens that may not follow, ascending. They would open a call, and go on as none can."""
        found = self._forbidden.get(place)
        if found is None:
            if len(self._forbidden) >= MOST_STEPS >> 6:
                self._forbidden.clear()
            ids = sorted(id for id in self._risky(place) if self._moved(place, id)[0] is LOST)
            found = self._forbidden[place] = np.asarray(ids, dtype=np.int64)
        return found

    def _risky(self, place: Place) -> set[int]:
        """Return the tokens that may complete a text which opens a call, and go on."""
        region, fresh, held = place
        risky = {*self._whole}
        if self._listed and fresh and region == BETWEEN and len(held) < 2:
            risky.update(self._index.calling)  # blanks behind the first character do not count
        for text in [*self._calls, *(self._starts if fresh else ())]:
            for begun in range(1, min(len(text), len(held) + 1)):
                if held.endswith(text[:begun]):
                    risky.update(self._index.beginning(text[begun:]))
        return risky


def _encoded(texts: Iterable[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def without(forbidden: np.ndarray, bits_W: Any) -> None:
    """Write the mask of all tokens but these."""
    bits_W[:] = 0xFFFFFFFF
    np.bitwise_and.at(bits_W, forbidden >> 5, ~(np.uint32(1) << (forbidden & 31).astype(np.uint32)))

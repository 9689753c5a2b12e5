"""The reader of a turn: reasoning, content and tool calls from the text of an answer, as it comes.

It follows a turn template. A text that may be the beginning of a delimiter is held back. Each character is looked at a
bounded number of times. What was to be a tool call and is none stays in the content, with its delimiters; nothing is lost.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .calls import Calls, calls_of
from .json_calls import CallPiece
from .schema_types import ToolTypes
from .template import CALLS, CONTENT, THINKING, TurnRegion, TurnTemplate

PIECE = 4096  # characters that are read at a time, so that what is cut off does not grow with the text


@dataclass(slots=True)
class TurnDelta:
    """An addition to a turn: one of its three parts.

    ``end``: the place behind a content in the text of the answer, from which all of it comes.
    """

    reasoning: str = ""
    content: str = ""
    call: CallPiece | None = None
    end: int = field(default=0, compare=False)


@lru_cache(maxsize=256)
def _pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression for any of these texts; where several fit, the longest."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


@lru_cache(maxsize=256)
def _beginnings(texts: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """Return all proper beginnings of these texts, and the length of the longest."""
    found = frozenset(text[:end] for text in texts for end in range(1, len(text)))
    return found, max(map(len, found), default=0)


def _held(text: str, at: int, texts: tuple[str, ...]) -> int:
    """Return the start of the longest end of a text that may become one of these texts; its length, if there is none."""
    found, longest = _beginnings(texts)
    for start in range(max(at, len(text) - longest), len(text)):
        if text[start:] in found:
            return start
    return len(text)


class TurnReader:
    """The state of one answer. ``begun``: what the prompt has of the turn. ``calls``: False if calls are not read.

    ``constrained``: the content has a grammar of its own, in which a text like a delimiter may occur. ``schemas``: what the
    arguments of tools are, by name. ``called``: tool calls so far. ``cut_call``: the turn ended inside of the last one.
    ``settled``: thinking has ended, or other text has begun.
    """

    def __init__(
        self,
        template: TurnTemplate,
        begun: str = "",
        *,
        calls: bool = True,
        constrained: bool = False,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        self._content = template.regions[CONTENT]
        self._base = TurnRegion("", (), ()) if self._content.opens else self._content  # what is in no other region
        regions = [one for one in template.regions.values() if calls or one.name != CALLS]
        self._opens = {text: region for region in regions for text in region.entries}
        self._starts = [region for region in regions if region.starts]
        self._types = ToolTypes(schemas or {})
        self._region = self._base
        self._buffer = ""
        self._begin_stretch()
        self._calls: Calls | None = None
        self._counted = 0  # calls of this region that are in ``called``
        self._raw: list[str] = []  # of a region of calls before its first name
        self._fresh = True  # there was neither a text nor a call
        self.called = 0
        self.cut_call = False
        self._position = 0  # characters before the buffer
        self._spans: list[list[int]] = []  # begin and end of thinking
        self.settled = False
        self._constrained = constrained
        self._behind_thinking = False  # which ended in the answer
        if begun:
            self.feed(begun)
            self._position = -len(self._buffer)
            self._spans = [[0, _OPEN]] if self.thinking else []
            self._behind_thinking = False
            self._blanks.clear()

    @property
    def thinking(self) -> bool:
        """True inside of thinking."""
        return self._region.name == THINKING

    @property
    def standing(self) -> tuple[str, bool, str]:
        """The name of the region, whether there was neither a text nor a call, and what may begin a delimiter."""
        return self._region.name if self._region is not self._base else "", self._fresh, self._buffer

    @property
    def inside_text(self) -> bool:
        """True inside of a text that has an opening one."""
        return self._region is self._content and self._region is not self._base

    def reasoning_tokens(self, offsets: Sequence[int]) -> int:
        """Return the number of tokens inside of thinking. ``offsets``: the places of all tokens in the answer's text."""
        return sum(bisect_left(offsets, end) - bisect_left(offsets, begin) for begin, end in self._spans)

    def feed(self, text: str) -> list[TurnDelta]:
        """Return what a text adds."""
        made: list[TurnDelta] = []
        for at in range(0, len(text), PIECE):
            self._buffer += text[at : at + PIECE]
            while self._step(made, ended=False):
                pass
        return made

    def finish(self, *, cut: bool = False) -> list[TurnDelta]:
        """End the turn; return what was held back, but for the beginning of a text that would have closed a call.

        ``cut``: the answer was cut off. A constrained text has not begun then with what may begin a delimiter.
        """
        made: list[TurnDelta] = []
        if cut and self._constrained and self._region is self._content and self._empty:
            self._pop(len(self._buffer))
            self._blanks.clear()
        calls = self._calls
        if calls is not None and calls.count and not calls.in_string and self._buffer in _beginnings(self._region.closes)[0]:
            self._pop(len(self._buffer))
        while self._step(made, ended=True):
            pass
        if self._region.name == CALLS:
            self.cut_call = self._calls is not None and self._calls.count > 0 and self._calls.inside
            self._end_calls(made)
        elif self._constrained and not self.thinking and any(self._blanks):
            made.append(TurnDelta(content="".join(self._blanks), end=self._position))
        return made

    def _step(self, made: list[TurnDelta], *, ended: bool) -> bool:
        """Read up to the next delimiter; return False if there is none."""
        inside = self._region is not self._base
        if not inside and self._fresh and self._starts:
            self._skip_blanks(made)
            for region in self._starts:
                if self._buffer.startswith(region.ahead):
                    self._open(region, "")
                    return True
            if not ended and any(region.ahead.startswith(self._buffer) for region in self._starts):
                return False
        texts = self._awaited
        if inside and self._constrained and self._region is self._content:
            return self._step_to_the_end(made, ended=ended)
        found = _pattern(texts).search(self._buffer) if texts else None
        # A longer delimiter may be coming, of which this one is the beginning.
        end = len(self._buffer) if ended else _held(self._buffer, 0 if found is None else found.start(), texts)
        free = self._constrained and self._region is self._base and self._base is self._content
        if free and self._buffer[: end if found is None else found.start()].strip():
            found, end = None, len(self._buffer)  # the content has begun
        if found is not None and end > found.start():
            end = found.start()
        else:
            found = None
        region = self._region
        self._take(self._pop(end), made)
        if self._region is not region:
            return True  # it was none
        if found is None:
            return bool(self._buffer) and ended
        if inside and self._calls is not None and self._calls.in_string:
            self._take(self._pop(1), made)  # the text of a delimiter inside a string
            return True
        opened = None if inside else self._opens.get(found[0])
        if opened is None:
            self._close("" if self._region.closes_ahead else self._pop(len(found[0])), made)
        else:
            self._open(opened, self._pop(len(found[0]) - len(opened.ahead)))
        return True

    @property
    def _awaited(self) -> tuple[str, ...]:
        """The texts that would end the region, or open one."""
        if self._region is not self._base:
            return self._region.closes
        if self._constrained and self._base is self._content and not self._empty:
            return ()
        return (*self._opens, *self._base.closes)

    def _step_to_the_end(self, made: list[TurnDelta], *, ended: bool) -> bool:
        """Read on in a content that may have its own closing text inside: only the last one closes it."""
        closes = self._region.closes
        if ended:
            close = next((text for text in closes if self._buffer.endswith(text)), "")
            self._take(self._pop(len(self._buffer) - len(close)), made)
            self._pop(len(close))
        else:
            self._take(self._pop(_held(self._buffer, 0, tuple(text + "." for text in closes))), made)
        return False

    def _skip_blanks(self, made: list[TurnDelta]) -> None:
        blanks = len(self._buffer) - len(self._buffer.lstrip())
        if blanks:
            self._take(self._pop(blanks), made)

    def _pop(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._position += count
        return text

    def _open(self, region: TurnRegion, delimiter: str) -> None:
        self._region = region
        before = "".join(self._blanks)  # a part of the text, if this is no call
        self._begin_stretch()
        if region.name == THINKING:
            self._spans.append([self._position - len(delimiter), _OPEN])
        elif region is self._content:
            self._behind_thinking = False  # its text begins here
        elif region.calls is not None:
            self._counted = 0
            marked = bool(delimiter)
            self._calls = calls_of(region.calls, self.called, self._types, marked=marked)
            self._raw = [before, delimiter]

    def _close(self, delimiter: str, made: list[TurnDelta]) -> None:
        if self._region.name == THINKING:
            self._spans[-1][1] = self._position
            self.settled = self._behind_thinking = True
        self._begin_stretch()
        if self._calls is not None:
            self._report(self._calls, self._calls.close(), made)
            self._raw.append(delimiter)
            self._end_calls(made)
        self._region = self._base

    def _end_calls(self, made: list[TurnDelta]) -> None:
        """Give back a region without a single call as content."""
        calls, self._calls = self._calls, None
        if calls is not None and not calls.count:
            made.append(TurnDelta(content="".join(self._raw), end=self._position))
            self._empty = self._fresh = False
        self._raw = []

    def _begin_stretch(self) -> None:
        self._empty = True
        self._blanks: list[str] = []

    def _take(self, text: str, made: list[TurnDelta]) -> None:
        """Take text of the region that is open."""
        if not text:
            return
        if self._calls is not None:
            self._take_call(self._calls, text, made)
            return
        if not self._region.name:
            return
        if self._region.strip:
            # A constraint is of the whole text, with its blanks; those behind thinking are not of the text.
            exact = self._constrained and not self.thinking and not self._behind_thinking
            kept = text.rstrip()
            if not kept:
                self._blanks += [] if self._empty and not exact else [text]
                return
            blanks, self._blanks = "".join(self._blanks), [text[len(kept) :]]
            text = blanks + (kept.lstrip() if self._empty and not exact else kept)
        self._empty = False
        self._fresh = self._fresh and (self.thinking or not text.strip())
        self.settled = self.settled or not self.thinking
        end = self._position - sum(map(len, self._blanks))
        made.append(TurnDelta(reasoning=text) if self.thinking else TurnDelta(content=text, end=end))

    def _take_call(self, calls: Calls, text: str, made: list[TurnDelta]) -> None:
        """Take text of calls. Each character alone, so that where a call breaks off does not depend on how a text is cut."""
        for place, char in enumerate(text):
            if not calls.count:
                self._raw.append(char)
            self._report(calls, calls.feed(char), made)
            if calls.broken:
                self._break_off(calls, text[place + 1 :], made)
                return

    def _break_off(self, calls: Calls, left: str, made: list[TurnDelta]) -> None:
        """Go on as in a content, from the character on that is no part of a call. ``left``: what follows it."""
        rest = calls.rest if calls.count else self._raw.pop()
        before = "".join(self._raw)
        self._calls, self._raw = None, []
        self._region, self._fresh = self._content, False
        self._begin_stretch()
        self._empty = calls.count > 0
        self._position -= len(rest) + len(left)
        if not calls.count:
            self._take(before, made)
        self._buffer = rest + left + self._buffer

    def _report(self, calls: Calls, pieces: list[CallPiece], made: list[TurnDelta]) -> None:
        for piece in pieces:
            last = made[-1].call if made else None
            if last is not None and not piece.name and last.index == piece.index:
                last.arguments += piece.arguments
            else:
                made.append(TurnDelta(call=piece))
        self.called += calls.count - self._counted
        self._counted = calls.count
        self._fresh = self._fresh and not calls.count


_OPEN = 1 << 62  # the end of a thinking that goes on

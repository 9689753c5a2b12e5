"""The reader of a turn: reasoning, content and tool calls from the text of an answer, as it comes.

It follows a turn template. A text that may be the beginning of a delimiter is held back. Each character is looked at a
bounded number of times. What was to be a tool call and is none stays in the content, with its delimiters; nothing is lost.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .json_calls import CallPiece, JsonCalls
from .template import CALLS, CONTENT, THINKING, Region, TurnTemplate


@dataclass(slots=True)
class TurnDelta:
    """An addition to a turn: one of its three parts."""

    reasoning: str = ""
    content: str = ""
    call: CallPiece | None = None


@lru_cache(maxsize=256)
def _pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression for any of these texts; where several fit, the longest."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _held(text: str, at: int, texts: Sequence[str]) -> int:
    """Return the start of the longest end of a text that may become one of these texts; its length, if there is none."""
    longest = max(map(len, texts), default=0)
    for start in range(max(at, len(text) - longest + 1), len(text)):
        if any(one.startswith(text[start:]) for one in texts):
            return start
    return len(text)


class TurnReader:
    """The state of one answer. ``begun``: what the prompt has of the turn. ``calls``: False if calls are not read.

    ``constrained``: the content has a grammar of its own, in which a text like a delimiter may occur. ``called``: tool calls
    so far. ``settled``: thinking has ended, or other text has begun.
    """

    def __init__(self, template: TurnTemplate, begun: str = "", *, calls: bool = True, constrained: bool = False) -> None:
        self._template = template
        self._content = template.regions[CONTENT]
        regions = [one for one in template.regions.values() if one.opens and (calls or one.name != CALLS)]
        self._opens = {text: region for region in regions for text in region.opens}
        self._region = self._content
        self._buffer = ""
        self._begin_stretch()
        self._calls: JsonCalls | None = None
        self._raw: list[str] = []  # of a region of calls before its first name
        self.called = 0
        self._position = 0  # characters before the buffer
        self._spans: list[list[int]] = []  # begin and end of thinking
        self.settled = False
        self._constrained = constrained
        if begun:
            self.feed(begun)
            self._position = -len(self._buffer)
            self._spans = [[0, _OPEN]] if self.thinking else []

    @property
    def thinking(self) -> bool:
        """True inside of thinking."""
        return self._region.name == THINKING

    def reasoning_tokens(self, offsets: Sequence[int]) -> int:
        """Return the number of tokens inside of thinking. ``offsets``: the places of all tokens in the answer's text."""
        return sum(bisect_left(offsets, end) - bisect_left(offsets, begin) for begin, end in self._spans)

    def feed(self, text: str) -> list[TurnDelta]:
        """Return what a text adds."""
        self._buffer += text
        made: list[TurnDelta] = []
        while self._step(made, ended=False):
            pass
        return made

    def finish(self) -> list[TurnDelta]:
        """End the turn; return what was held back."""
        made: list[TurnDelta] = []
        while self._step(made, ended=True):
            pass
        if self._region.name == CALLS:
            self._end_calls(made)
        return made

    def _step(self, made: list[TurnDelta], *, ended: bool) -> bool:
        """Read up to the next delimiter; return False if there is none."""
        inside = self._region is not self._content
        opens = () if self._constrained and not self._empty else tuple(self._opens)
        texts = self._region.closes if inside else opens
        found = _pattern(texts).search(self._buffer) if texts else None
        # A longer delimiter may be coming, of which this one is the beginning.
        end = len(self._buffer) if ended else _held(self._buffer, 0 if found is None else found.start(), texts)
        if self._constrained and not inside and self._buffer[: end if found is None else found.start()].strip():
            found, end = None, len(self._buffer)  # the content has begun
        if found is not None and end > found.start():
            end = found.start()
        else:
            found = None
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        self._position += end
        if text:
            self._take(text, made)
        if found is None:
            return bool(self._buffer) and ended
        if inside and self._calls is not None and self._calls.in_string:
            self._take(self._pop(1), made)  # the text of a delimiter inside a string
            return True
        if (self._region is not self._content) is not inside:
            return True  # the region was none
        delimiter = self._pop(len(found[0]))
        if inside:
            self._close(delimiter, made)
        else:
            self._open(self._opens[delimiter], delimiter)
        return True

    def _pop(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._position += count
        return text

    def _open(self, region: Region, delimiter: str) -> None:
        self._region = region
        before = self._blanks  # a part of the text, if this is no call
        self._begin_stretch()
        if region.name == THINKING:
            self._spans.append([self._position - len(delimiter), _OPEN])
        elif region.calls is not None:
            self._calls, self._raw = JsonCalls(region.calls, self.called), [before, delimiter]

    def _close(self, delimiter: str, made: list[TurnDelta]) -> None:
        if self._region.name == THINKING:
            self._spans[-1][1] = self._position
            self.settled = True
        self._begin_stretch()
        if self._calls is not None:
            self._raw.append(delimiter)
            self._end_calls(made)
        self._region = self._content

    def _end_calls(self, made: list[TurnDelta]) -> None:
        """Give back a region without a single call as content."""
        calls, self._calls = self._calls, None
        if calls is not None and not calls.count:
            made.append(TurnDelta(content="".join(self._raw)))
            self._empty = False
        self._raw = []

    def _begin_stretch(self) -> None:
        self._empty, self._blanks = True, ""

    def _take(self, text: str, made: list[TurnDelta]) -> None:
        """Take text of the region that is open."""
        if self._calls is not None:
            self._take_call(self._calls, text, made)
            return
        if self._region.strip:
            text = self._blanks + text
            kept = text.rstrip()
            self._blanks = text[len(kept) :] if kept or not self._empty else ""
            text = kept.lstrip() if self._empty else kept
        if not text:
            return
        self._empty = False
        self.settled = self.settled or not self.thinking
        made.append(TurnDelta(reasoning=text) if self.thinking else TurnDelta(content=text))

    def _take_call(self, calls: JsonCalls, text: str, made: list[TurnDelta]) -> None:
        if not calls.count:
            self._raw.append(text)
        made += [TurnDelta(call=piece) for piece in calls.feed(text)]
        self.called = calls.first + calls.count
        if not calls.broken:
            return
        rest = calls.rest if calls.count else "".join(self._raw)
        self._calls, self._raw = None, []
        self._region = self._content
        self._begin_stretch()
        self._empty = calls.count > 0
        self._take(rest, made)


_OPEN = 1 << 62  # the end of a thinking that goes on

"""A scanner for stop strings in a text that arrives in pieces; the result does not depend on the split into pieces.

The match that *ends* first wins (the longest of several that end together): a reader of one character at a time can follow
no other rule. Pure. Linear in the text for each stop string (Knuth, Morris and Pratt).
"""

from __future__ import annotations

from collections.abc import Sequence


def _failure(stop: str) -> list[int]:
    """Return the failure table of Knuth, Morris and Pratt.

    ``table[i]``: length of the longest proper prefix of ``stop[: i + 1]`` that is also its suffix.
    """
    table = [0] * len(stop)
    k = 0
    for i in range(1, len(stop)):
        while k and stop[i] != stop[k]:
            k = table[k - 1]
        if stop[i] == stop[k]:
            k += 1
        table[i] = k
    return table


class StopScanner:
    """A scanner that holds back the shortest tail that may still become a stop string. ``found``: that string, once seen.

    Some of the model's text is not shown: ``hidden`` text counts for stop strings and is left out of the results.
    """

    __slots__ = ("_failures", "_held", "_hidden", "_matched", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._failures = [_failure(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._hidden: list[tuple[int, int]] = []  # hidden ranges of the held text, in order
        self.found: str | None = None

    def push(self, text: str, *, hidden: bool = False) -> str:
        """Return text that is certain to belong to the answer; always empty after a stop string was found."""
        if self.found is not None:
            return ""
        seen = self._held + text
        if hidden:
            self._hidden.append((len(self._held), len(seen)))
        matched = self._matched
        for at, char in enumerate(text, len(self._held) + 1):
            complete = -1
            for s, stop in enumerate(self._stops):
                k = matched[s]
                while k and stop[k] != char:
                    k = self._failures[s][k - 1]
                if stop[k] == char:
                    k += 1
                matched[s] = k
                if k == len(stop) and (complete < 0 or k > len(self._stops[complete])):
                    complete = s
            if complete >= 0:
                self.found = self._stops[complete]
                return self._release(seen[:at], at - len(self.found))
        return self._release(seen, len(seen) - max(matched, default=0))

    def flush(self) -> str:
        """End the text; return the held tail, which belongs to the answer."""
        return self._release(self._held, len(self._held))

    def _release(self, seen: str, end: int) -> str:
        """Hold the text from ``end`` on; return the visible part of the text before it."""
        self._held = seen[end:]
        if not self._hidden:
            return seen[:end]
        shown, at = [], 0
        for first, last in self._hidden:
            shown.append(seen[at : max(at, min(first, end))])
            at = min(last, end)
        self._hidden = [(max(0, first - end), last - end) for first, last in self._hidden if last > end]
        return "".join([*shown, seen[at:end]])

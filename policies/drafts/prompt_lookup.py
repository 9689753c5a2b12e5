"""Prompt lookup: the drafts are the tokens that followed an earlier occurrence of the last few tokens.

After Saxena, "Prompt Lookup Decoding" (2023). The index grows by one entry with each token and is never built anew.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8  # tokens before a place that are compared; a longer match is no better evidence
EXAMINED = 32  # earlier occurrences of the last token that are looked at, the latest first


class TokenIndex:
    """The places of each token in a growing text. ``size`` tokens are indexed."""

    def __init__(self) -> None:
        self.size = 0
        self._last: dict[int, int] = {}  # token -> its last place
        self._previous: list[int] = []  # place -> the place before it of the same token, -1: none

    def extend(self, text: Sequence[int], end: int) -> None:
        """Index the tokens of ``text`` from ``size`` to ``end``. The ones before are the same as in earlier calls."""
        last, previous = self._last, self._previous
        for place in range(self.size, end):
            previous.append(last.get(text[place], -1))
            last[text[place]] = place
        self.size = max(self.size, end)

    def find(self, text: Sequence[int], after: Sequence[int], end: int, near: int = -1) -> int:
        """Return the place in ``text`` whose preceding tokens agree best with the ones of ``after`` before ``end``.

        Of equally good places the one nearest to ``near`` is returned, without it the latest; -1: there is none. The end
        of the indexed text is no place.
        """
        best, length = -1, 0
        place = self._last.get(after[end - 1], -1) if end else -1
        for _ in range(EXAMINED):
            if place < 0:
                break
            if place + 1 < self.size:
                same = agreement(text, place, after, end - 1)
                nearer = same == length and near >= 0 and abs(place + 1 - near) < abs(best - near)
                if same > length or nearer:
                    best, length = place + 1, same
                    if same == LONGEST and near < 0:
                        break
            place = self._previous[place]
        return best


def agreement(text: Sequence[int], at: int, after: Sequence[int], end: int) -> int:
    """Return how many tokens agree backwards from these two places, at most ``LONGEST``; the first ones do."""
    limit = min(LONGEST, at + 1, end + 1)
    same = 1
    while same < limit and text[at - same] == after[end - same]:
        same += 1
    return same


def continuation(text: Sequence[int], place: int, end: int, limit: int) -> list[int]:
    """Return ``limit`` tokens from ``place`` on. At ``end`` the text goes on as the copy of itself that it then is."""
    period = end - place
    return [text[place + i % period] for i in range(limit)]

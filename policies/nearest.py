"""Nearest known name: what a person who misspelled a name may have meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable

NEAR = 0.6  # likeness, 0 to 1, from which a name may have been meant
LONGEST = 1024  # characters of a name that is compared; the work grows with their product
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


def edits(one: str, other: str) -> int:
    """Return the edit distance: letters inserted, removed, replaced, or swapped with the next one."""
    before: list[int] = []
    row: list[int] = [*range(len(other) + 1)]
    for i, letter in enumerate(one, 1):
        last, before = before, row
        row = [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def nearest(name: str, known: Iterable[str], near: float = NEAR) -> str:
    """Return the known name that takes the fewest edits; empty where none is ``near`` enough.

    Large and small letters are equal. Of equally near names, first comes one of the same number (lora3 and lora03), then
    the longest common beginning, then the nearest length. A name of more than ``LONGEST`` characters is near none.
    """
    if len(name) > LONGEST:
        return ""
    folded = {one.casefold(): one for one in known}
    typed = name.casefold()
    found = difflib.get_close_matches(typed, folded, max(len(folded), 1), near)

    def distance(one: str) -> tuple[int, bool, int, int, str]:
        other = _LEADING_ZEROS.sub("", one) != _LEADING_ZEROS.sub("", typed)
        common = next((i for i, (a, b) in enumerate(zip(one, typed, strict=False)) if a != b), min(len(one), len(typed)))
        return edits(one, typed), other, -common, abs(len(one) - len(typed)), one

    return folded[min(found, key=distance)] if found else ""


def suggestion(name: str, known: Collection[str], form: Callable[[str], str] = str) -> str:
    """Return the end of a sentence about a name that is not known: the nearest one in this form, or all that there are."""
    near = nearest(name, known)
    return f"did you mean {form(near)}?" if near else f"there are: {', '.join(known)}"

"""Which of the known names a person may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable

NEAR = 0.6  # likeness, 0 to 1, of what may have been meant


def nearest(name: str, known: Iterable[str], near: float = NEAR) -> str:
    """Large and small letters aside; empty where none is ``near`` enough."""
    folded = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(name.casefold(), folded, 1, near)
    return folded[found[0]] if found else ""


def suggestion(name: str, known: Collection[str], form: Callable[[str], str] = str) -> str:
    """What a sentence says after a name that is not known: the nearest one in this form, or all that there are."""
    near = nearest(name, known)
    return f"did you mean {form(near)}?" if near else f"there are: {', '.join(known)}"

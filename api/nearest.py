"""Which of the known names a person may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Large and small letters aside; empty where none is near."""
    folded = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(name.casefold(), folded, 1)
    return folded[found[0]] if found else ""

"""The result of a check of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check, one line. ``fix``: the remedy, if one is needed."""

    name: str
    status: str
    text: str
    fix: str = ""

"""Why a request is refused or failed, in the server's own terms; ``api/errors.py`` says it in those of HTTP."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Each has one HTTP status and one error code (``api/errors.py``)."""

    UNKNOWN_MODEL = "unknown model"
    INVALID = "invalid"
    TOO_LONG = "too long"  # for the model's context, or for the memory that a sequence can get
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"  # starting, shutting down, or without a worker
    CANCELLED = "cancelled"
    POISON = "poison"  # present at too many worker deaths


class Refused(Exception):
    """``message``: one sentence with the numbers and the remedy. ``retry_after``: seconds, where trying again may help."""

    def __init__(self, why: Refusal, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.why, self.message, self.retry_after = why, message, retry_after

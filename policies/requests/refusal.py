"""Why a request is refused or failed, in the server's own terms; ``api/errors.py`` says it in those of HTTP."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Each has one HTTP status and one error code (``api/errors.py``)."""

    UNKNOWN_MODEL = "unknown model"
    UNKNOWN_WORKER = "unknown worker"
    INVALID = "invalid"
    TOO_LONG = "too long"  # for the model's context, or for the memory that a sequence can get
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"  # starting, shutting down, or without a worker
    EXPIRED = "expired"  # not complete within its time
    CANCELLED = "cancelled"
    CONFLICT = "conflict"  # with what is served, or is being done, already
    FORBIDDEN = "forbidden"  # by the settings
    POISON = "poison"  # present at too many worker deaths
    BROKEN = "broken"  # its model computes what is no number


class RequestRefused(Exception):
    """``message``: one sentence with the numbers and the remedy. ``retry_after``: seconds, where trying again may help.
    ``param``: what of the request is to blame, where ``why`` alone does not say it. ``failure``: number of the load failure
    that it tells of; 0: of none."""

    def __init__(
        self, why: Refusal, message: str, retry_after: float | None = None, param: str | None = None, failure: int = 0
    ) -> None:
        super().__init__(message)
        self.why, self.message, self.retry_after, self.param = why, message, retry_after, param
        self.failure = failure

    @property
    def in_vain(self) -> bool:
        """Trying again does not help, as far as is known."""
        return self.retry_after is None

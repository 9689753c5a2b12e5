"""Reasons why a request is refused or fails, in the server's own terms; ``api/errors.py`` translates them to HTTP."""

from __future__ import annotations

from enum import Enum

# The remedy of a shorter answer in messages. The API has the client's own name for the field in its place.
SHORTER_ANSWER = "lower max_tokens"


class Refusal(Enum):
    """A reason. Each has one HTTP status and one error code (``api/errors.py``)."""

    UNKNOWN_MODEL = "unknown model"
    UNKNOWN_WORKER = "unknown worker"
    INVALID = "invalid"
    TOO_LONG = "too long"  # for the model's context, or for the memory of a sequence
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"  # starting, shutting down, or without a worker
    EXPIRED = "expired"  # not complete within its time limit
    CANCELLED = "cancelled"
    CONFLICT = "conflict"  # with an application that is served, or a change in progress
    FORBIDDEN = "forbidden"  # by the settings
    POISON = "poison"  # present at too many worker deaths
    UNHELD = "unheld"  # its grammar cannot be compiled or followed by a worker
    BROKEN = "broken"  # its model computes a value that is not a number


class RequestRefused(Exception):
    """A refused or failed request.

    message: one sentence with the numbers and the remedy. retry_after: seconds, if a retry may help. param: the request's
    parameter at fault, if ``why`` alone does not tell. failure: number of the load failure it reports; 0: none.
    ``limit``: the field by which the request limits its answer, as far as is known; empty: it has no answer to limit.
    """

    def __init__(
        self, why: Refusal, message: str, retry_after: float | None = None, param: str | None = None, failure: int = 0
    ) -> None:
        super().__init__(message)
        self.why = why
        self.message = message
        self.retry_after = retry_after
        self.param = param
        self.failure = failure
        self.limit = "max_tokens"

    @property
    def in_vain(self) -> bool:
        """True if a retry does not help, as far as is known."""
        return self.retry_after is None

"""Finished requests as a tracing system receives them. Without a configured endpoint there is no receiver.

This module owns the data known of a request at its end. ``otlp.py`` sends it, and needs packages that are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A finished request.

    ``trace``: its own span; ``parent``: the client's span; both in the form of ``runtime/base/scope.py``, or empty. Seconds
    count from ``began``, which is in seconds since 1970. None: the request did not get that far.
    """

    operation: str  # "chat" or "text_completion"
    model: str
    id: str
    tenant: str
    trace: bytes
    parent: bytes
    began: float
    seconds: float
    status: int
    error: str  # "code: sentence"; empty without an error
    asked: Mapping[str, float]  # sampling parameters that the request set: max_tokens, temperature, top_p, n
    reasons: Sequence[str] = ()  # finish reasons of its choices
    prompt_tokens: int | None = None
    tokens: int | None = None
    queued: float | None = None
    first_token: float | None = None


class Spans(Protocol):
    """The receiver of finished requests."""

    def note(self, request: FinishedRequest) -> None:
        """Take a finished request. Costs microseconds."""

    async def close(self) -> None:
        """Send the queued requests."""

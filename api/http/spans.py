"""Requests as a tracing system is told of them, once they are over. Where no endpoint is set there is nobody to tell.

Owns what is known of a request at its end; how it is sent is ``otlp.py``'s, which needs packages that not everybody has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """``trace``: of its own span, ``parent``: of the client's, both as ``runtime/base/scope.py`` has them or empty. Seconds
    since ``began``, which is in seconds since 1970; None: it did not come so far."""

    operation: str  # "chat" or "text_completion"
    model: str
    id: str
    tenant: str
    trace: bytes
    parent: bytes
    began: float
    seconds: float
    status: int
    error: str  # "code: sentence", empty where there was none
    asked: Mapping[str, float]  # sampling that the request named: max_tokens, temperature, top_p, n
    reasons: Sequence[str] = ()  # of its choices
    prompt_tokens: int | None = None
    tokens: int | None = None
    queued: float | None = None
    first_token: float | None = None


class Spans(Protocol):
    """Where they go."""

    def note(self, request: FinishedRequest) -> None:
        """It is over. Takes microseconds."""

    async def close(self) -> None:
        """Send what waits."""

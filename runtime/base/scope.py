"""Deadline and trace propagation: what calls made inside an endpoint inherit from the message it serves.

Owns the one context variable of the runtime. A scope counts as long as its message is being handled: a task that an endpoint
started and left behind keeps the trace, but not the deadline of a call that was answered long ago.

Traces follow W3C Trace Context (https://www.w3.org/TR/trace-context/): 16 bytes of trace id, 8 of the span that asked, 1 of
flags; as text ``00-<32 hex digits>-<16>-<2>``. A trace begins where one is set or asked for, so that
untraced calls cost nothing.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from contextvars import ContextVar

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = b"\x01"
TRACE_BYTES = 25


class Scope:
    """``deadline``: by the node's clock, None for no limit; ``trace``: TRACE_BYTES bytes, or none begun yet."""

    __slots__ = ("deadline", "over", "trace")

    def __init__(self, deadline: float | None, trace: bytes) -> None:
        self.deadline, self.trace = deadline, trace
        self.over = False


CURRENT: ContextVar[Scope | None] = ContextVar("scope", default=None)


def inherited_deadline() -> float | None:
    """Return the deadline of the work that is being served."""
    scope = CURRENT.get()
    return None if scope is None or scope.over else scope.deadline


def next_span() -> bytes:
    """Return the trace of a message about to be sent: the current one with a new span, or nothing if none has begun."""
    scope = CURRENT.get()
    return new_span(scope.trace) if scope is not None and scope.trace else b""


def new_trace() -> bytes:
    return (random.getrandbits(192) | 1 << 191 | 1).to_bytes(24) + SAMPLED  # neither id may be all zeros


def new_span(trace: bytes) -> bytes:
    """Return the same trace with a new span."""
    return trace[:16] + (random.getrandbits(64) | 1).to_bytes(8) + trace[24:]


def parse_traceparent(text: str) -> bytes:
    """Parse a traceparent. Raises ValueError for any text that is not one of version 00."""
    match = _PARENT.fullmatch(text)
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        raise ValueError(f"{text[:80]!r} is no traceparent of the form 00-<32 hex digits>-<16>-<2>, ids not zero")
    return bytes.fromhex(match[1] + match[2] + match[3])


def format_traceparent(trace: bytes) -> str:
    return f"00-{trace[:16].hex()}-{trace[16:24].hex()}-{trace[24:].hex()}"


def current_traceparent() -> str:
    """Return the traceparent of the message being handled, or of the ``trace`` block.

    A trace begins here if none has. Outside of both, returns "".
    """
    scope = CURRENT.get()
    if scope is None:
        return ""
    scope.trace = scope.trace or new_trace()
    return format_traceparent(scope.trace)


@contextlib.contextmanager
def trace(traceparent: str | None = None) -> Iterator[str]:
    """Put the calls made in this block into the trace, a new one unless given; yield its traceparent. Raises ValueError."""
    begun = new_trace() if traceparent is None else parse_traceparent(traceparent)
    scope = Scope(inherited_deadline(), begun)
    token = CURRENT.set(scope)
    try:
        yield format_traceparent(begun)
    finally:
        scope.over = True
        CURRENT.reset(token)

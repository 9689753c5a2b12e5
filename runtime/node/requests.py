"""Request ids, inherited deadlines and trace contexts of outgoing calls, casts and streams.

Owns the numbers, the rule that a request never outlives the deadline of the message in whose service it is made, and the
check that it is made on the node's own event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading

from ...transport.clock import Clock
from ..base.address import Address
from ..base.clock import LONGEST
from ..base.errors import DeadlineExceeded
from ..base.scope import CURRENT, inherited_deadline, new_trace, next_span
from ..tracing.message_log import MessageLog


class Requests:
    """See the module. Made on the node's event loop."""

    def __init__(self, clock: Clock, message_log: MessageLog | None) -> None:
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self.message_log = message_log
        self._clock = clock
        self._numbers = itertools.count(1)

    def number(self) -> int:
        return next(self._numbers)

    def span(self, target: Address, endpoint: str, kind: str) -> bytes:
        """Return the trace context of a request about to be sent; where messages are logged, every request has one."""
        trace = next_span()
        if self.message_log is not None:
            scope = CURRENT.get()
            parent = scope.trace if scope is not None and trace else b""
            trace = trace or new_trace()
            self.message_log.sent(trace, parent, str(target), endpoint, kind)
        return trace

    def left(self, patience: float, label: str) -> float:
        """Return the seconds until a new request must be answered. Raises DeadlineExceeded when no time is left,
        RuntimeError on another event loop.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise wrong_loop(label)
        left, inherited = min(patience, LONGEST), inherited_deadline()
        if inherited is not None:
            left = min(left, inherited - self._clock.now())
        if left <= 0:
            raise DeadlineExceeded(f"no time is left to call {label}")
        return left


def wrong_loop(label: str) -> RuntimeError:
    """Why it cannot be called: nothing here is locked."""
    return RuntimeError(
        f"{label} is used outside of the event loop that its node runs on; from another thread call "
        "asyncio.run_coroutine_threadsafe(ref.method(...), loop), or loop.call_soon_threadsafe(ref.method.cast, ...)"
    )

"""One client's view of its generation: what has been delivered and not yet taken.

Owns the deltas between the gateway's handler and the reader. A slow reader's deltas are merged into one, so that it costs
no more memory than its answer. Never talks to workers: ends go through the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from blockwright.actors.gateway.port import Delta, GatewayError, StreamProgress


class RequestStream:
    """A ``port.Stream``. One reader."""

    def __init__(self, request: str, end: Callable[[str, bool], None]) -> None:
        self.request = request
        self.progress: Callable[[], StreamProgress] = StreamProgress  # the gateway's, once the request is admitted
        self._end = end
        self._pending: Delta | None = None
        self._error: GatewayError | None = None
        self._over = False  # nothing more will be put
        self._wake: asyncio.Future[None] | None = None

    # the gateway's side

    def put(self, delta: Delta) -> None:
        held = self._pending
        if held is None:
            self._pending = delta
        else:
            logprobs = held.logprobs + delta.logprobs
            tokens, prompt = held.tokens + delta.tokens, held.prompt + delta.prompt
            self._pending = Delta(tokens, logprobs, delta.finish, delta.stop_token, prompt)
        self._over = bool(delta.finish)
        self._notify()

    def fail(self, error: GatewayError) -> None:
        self._error, self._over = error, True
        self._notify()

    def close(self) -> None:
        self._pending, self._over = None, True
        self._notify()

    # the reader's side

    def stop(self) -> None:
        """The text is complete; the iteration ends without another delta."""
        self._end(self.request, True)

    def cancel(self) -> None:
        """The client is gone."""
        self._end(self.request, False)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Delta:
        """Raises GatewayError when the request failed, after all that was delivered before."""
        while self._pending is None:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        delta, self._pending = self._pending, None
        return delta

    def refused(self) -> GatewayError | None:
        """The error, if the request failed before anything was delivered; it is not raised again."""
        error = self._error if self._pending is None else None
        if error is not None:
            self._error = None
        return error

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

"""One client's stream: the news that is delivered and not yet read.

Owns the news between the gateway's handler and the reader. Unread tokens of a slow reader are merged, so that it costs no
more memory than its answer. Never talks to workers: ends go through the gateway.

Waking a task costs as much as the rest of a token's way. So a reader that waits may have its tokens offered to a listener
instead: those of all streams in one turn of the event loop, after the reports that came together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...policies.requests.book.sweep_report import joined
from ...policies.requests.refusal import RequestRefused
from ...policies.sweep.events import PromptScored, TokensEmitted
from .port import Listener, StreamNews, StreamProgress


class Offers:
    """The streams of one gateway that have news for their listeners."""

    def __init__(self) -> None:
        self._streams: list[RequestStream] = []

    def add(self, stream: RequestStream) -> None:
        """Let a stream make its offer in the next turn of the event loop."""
        if not self._streams:
            asyncio.get_running_loop().call_soon(self._make)
        self._streams.append(stream)

    def _make(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.offer()


class RequestStream:
    """A ``port.TokenStream`` with one reader. ``offers``: shared by the streams of a gateway."""

    def __init__(self, request: str, end: Callable[[str, bool], None], offers: Offers) -> None:
        self.request = request
        self.progress: Callable[[], StreamProgress] = StreamProgress  # the gateway's, once the request is admitted
        self._end = end
        self._scored: PromptScored | None = None  # delivered before any token
        self._pending: TokensEmitted | None = None
        self._error: Exception | None = None
        self._over = False  # nothing more will be put
        self._wake: asyncio.Future[None] | None = None
        self._listener: Listener | None = None
        self._offers = offers

    # the gateway's side

    def put(self, news: StreamNews) -> None:
        held = self._pending
        if isinstance(news, PromptScored):
            self._scored = news
        elif held is None:
            self._pending = news
        else:
            self._pending = joined(held, news)
        self._over = isinstance(news, TokensEmitted) and bool(news.finish)
        if self._listener is None or self._over or self._scored is not None:
            self._notify()
        elif held is None:
            self._offers.add(self)

    def offer(self) -> None:
        """Offer the pending tokens to the listener while the reader waits; wake it if they are not taken."""
        news, listener = self._pending, self._listener
        if news is None or listener is None or self._wake is None or self._wake.done():
            return  # the reader has them, or will look
        try:
            if listener(news):
                self._pending = None
                return
        except Exception as error:
            self._pending, self._error = None, error
        self._notify()

    def fail(self, error: RequestRefused) -> None:
        self._error, self._over = error, True
        self._notify()

    def close(self) -> None:
        self._scored = None
        self._pending = None
        self._over = True
        self._notify()

    # the reader's side

    def listen(self, listener: Listener) -> None:
        """See ``port.TokenStream``."""
        self._listener = listener

    def stop(self) -> None:
        """End the generation because its text is complete; the iteration ends without further news."""
        self._end(self.request, True)

    def cancel(self) -> None:
        """End the generation because the client is gone."""
        self._end(self.request, False)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> StreamNews:
        """Return the next news. Raises RequestRefused when the request failed, after all earlier news; and what the
        listener raised.
        """
        while (news := self._scored or self._pending) is None:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if news is self._scored:
            self._scored = None
        else:
            self._pending = None
        return news

    def refused(self) -> RequestRefused | None:
        """Return the error if the request failed before anything was delivered. It is not raised again."""
        error = self._error if self._scored is None and self._pending is None else None
        if not isinstance(error, RequestRefused):
            return None
        self._error = None
        return error

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

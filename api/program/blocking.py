"""The blocking client: a session without ``await``, on an event loop in a thread of its own.

So it works in a script, in a notebook (whose loop is already running) and in a test. Ctrl-C in the calling thread cancels
the work on the loop, lets it clean up, and continues as KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, Unpack, overload

from .client import GenerateCall, GenerateCalls, Message, Prompt, Vector
from .options import ConversationOptions, EmbedOptions, GenerateOptions
from .results import Answer, Piece

T = TypeVar("T")


class AsyncSession(Protocol):
    """The interface that ``BlockingSession`` runs: a ``Client`` or a ``Cluster``."""

    url: str

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    @overload
    def generate(  # type: ignore[overload-overlap] # as in ``Session.generate``
        self, prompt: Prompt, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateCall: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateCalls: ...

    def chat(
        self, messages: str | Sequence[Message], *, model: str | None = None, **options: Unpack[ConversationOptions]
    ) -> GenerateCall: ...

    @overload
    async def embed(  # type: ignore[overload-overlap] # as in ``Session.embed``
        self, text: Prompt, *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Vector: ...
    @overload
    async def embed(
        self, text: Sequence[Prompt], *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> list[Vector]: ...

    async def models(self) -> list[str]: ...

    async def get(self, path: str) -> Any: ...

    async def post(self, path: str, body: Mapping[str, Any]) -> Any: ...

    async def delete(self, path: str) -> Any: ...

    async def get_text(self, path: str) -> str: ...


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blockwright-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``. An interrupt cancels it and waits for its end."""
        running: list[asyncio.Task[Any] | None] = []

        async def carried() -> T:
            running.append(asyncio.current_task())
            return await work

        def cancel() -> None:
            for task in running:
                if task is not None:
                    task.cancel()

        future = asyncio.run_coroutine_threadsafe(carried(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(cancel)  # not future.cancel(), which would not wait for the clean-up
            concurrent.futures.wait([future])
            raise

    def close(self) -> None:
        self.run(_settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settle() -> None:
    """Cancel all tasks left on the loop and wait for their end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class BlockingCall:
    """A ``GenerateCall`` without ``await``: ``wait()`` for the answer, or iterate over its pieces."""

    def __init__(self, call: GenerateCall, loop: LoopThread) -> None:
        self._call, self._loop = call, loop

    @property
    def id(self) -> str:
        return self._call.id

    @property
    def answer(self) -> Answer | None:
        return self._call.answer

    def wait(self) -> Answer:
        return self._loop.run(self._call.whole())

    def __iter__(self) -> Iterator[Piece]:
        pieces = self._call.__aiter__()
        try:
            while (piece := self._loop.run(_next(pieces))) is not None:
                yield piece
        finally:
            self._loop.run(_close(pieces))


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncIterator[Piece]) -> None:
    close: Callable[[], Coroutine[Any, Any, None]] = pieces.aclose  # type: ignore[attr-defined]
    await close()


class BlockingSession:
    """A ``Client`` or ``Cluster`` for code without ``await``. Use as ``with``."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._loop: LoopThread | None = None

    @property
    def url(self) -> str:
        """The address; empty for a cluster without a port."""
        return self._session.url

    def __enter__(self) -> Self:
        loop = LoopThread()
        try:
            loop.run(self._session.__aenter__())
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        return self

    def __exit__(self, *_: object) -> None:
        loop, self._loop = self._thread, None
        try:
            loop.run(self._session.__aexit__(None, None, None))
        finally:
            loop.close()

    @overload
    def generate(  # type: ignore[overload-overlap] # as in ``Session.generate``
        self, prompt: Prompt, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Answer: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Answer]: ...
    def generate(
        self, prompt: Any, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Answer | list[Answer]:
        """Return the complete answer of ``Session.generate``; a list of prompts gives a list of answers."""
        call: Any = self._session.generate(prompt, model=model, **options)
        found: Answer | list[Answer] = self._thread.run(call.whole())
        return found

    def stream(self, prompt: Prompt, *, model: str | None = None, **options: Unpack[GenerateOptions]) -> BlockingCall:
        """Stream the answer to one prompt; raise TypeError for a list."""
        call: GenerateCall | GenerateCalls = self._session.generate(prompt, model=model, **options)
        if isinstance(call, GenerateCalls):
            raise TypeError("stream takes one prompt; call it for each, or generate for the whole answers")
        return BlockingCall(call, self._thread)

    def chat(
        self, messages: str | Sequence[Message], *, model: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Answer:
        """Return the complete answer of ``Session.chat``."""
        return self.stream_chat(messages, model=model, **options).wait()

    def stream_chat(
        self, messages: str | Sequence[Message], *, model: str | None = None, **options: Unpack[ConversationOptions]
    ) -> BlockingCall:
        return BlockingCall(self._session.chat(messages, model=model, **options), self._thread)

    @overload
    def embed(  # type: ignore[overload-overlap] # as in ``Session.embed``
        self, text: Prompt, *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Vector: ...
    @overload
    def embed(
        self, text: Sequence[Prompt], *, model: str | None = None, **options: Unpack[EmbedOptions]
    ) -> list[Vector]: ...
    def embed(self, text: Any, *, model: str | None = None, **options: Unpack[EmbedOptions]) -> Vector | list[Vector]:
        """Return the vectors of ``Session.embed``."""
        found: Vector | list[Vector] = self._thread.run(self._session.embed(text, model=model, **options))
        return found

    def models(self) -> list[str]:
        return self._thread.run(self._session.models())

    def get(self, path: str) -> Any:
        """Return the JSON of a GET of the API."""
        return self._thread.run(self._session.get(path))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of a POST of the API."""
        return self._thread.run(self._session.post(path, body))

    def delete(self, path: str) -> Any:
        """Return the JSON of a DELETE of the API."""
        return self._thread.run(self._session.delete(path))

    def get_text(self, path: str) -> str:
        return self._thread.run(self._session.get_text(path))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, run on the session's loop. An interrupt cancels it."""
        return self._thread.run(work)

    @property
    def _thread(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("the session is not open; use it inside 'with'")
        return self._loop

"""One streamed request to an OpenAI-compatible server, and the figures of interest to a person.

It measures at the client, and asks the server afterwards which workers answered. It owns no server and prints nothing;
``tour.py`` does both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ..program.client import Client, events
from ..program.results import RequestError
from .tasks import Example, is_right

MOST_TOKENS = 96
REQUEST_SECONDS = 60.0
AWAY_SECONDS, AGAIN = 15.0, 0.5  # for how long, and how often, a view is asked for while the head does not answer


@dataclass(slots=True)
class ExampleOutcome:
    """The outcome of a request so far. Times are seconds on the client's monotonic clock."""

    example: Example
    model: str
    text: str = ""
    request: str = ""  # the server's id
    variant: str = ""  # the variant that answered in the model's place
    finish: str = ""
    error: str = ""
    tokens: int = 0  # generated tokens by the server's count (including the end-of-sequence token)
    started: float = 0.0
    first: float = 0.0  # arrival of the first text
    ended: float = 0.0
    judged: bool = True  # True if the model can know the answer
    route: list[str] = field(default_factory=list)  # workers, in the order of the hops

    @property
    def right(self) -> bool:
        return not self.error and is_right(self.example, self.text)

    @property
    def verdict(self) -> str:
        """The verdict on a complete answer."""
        return ("right" if self.right else "wrong") if self.judged else "noise"

    @property
    def first_ms(self) -> float:
        """Milliseconds from sending to the first text; 0 without text."""
        return (self.first - self.started) * 1000 if self.first else 0.0

    @property
    def rate(self) -> float:
        """Tokens per second from sending to the end, including the prompt's time; 0 while it runs."""
        return self.tokens / (self.ended - self.started) if self.ended > self.started else 0.0


def absorb(outcome: ExampleOutcome, chunk: dict[str, Any], now: float) -> None:
    """Add one chunk of ``/v1/completions`` or ``/v1/chat/completions`` to an outcome."""
    if chunk.get("error"):
        outcome.error = str(chunk["error"].get("message", chunk["error"]))
        return
    for choice in chunk.get("choices", []):
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        if text and not outcome.first:
            outcome.first = now
        outcome.text += text
        outcome.finish = choice.get("finish_reason") or outcome.finish
    if chunk.get("usage"):
        outcome.tokens = chunk["usage"]["completion_tokens"]


def body_of(outcome: ExampleOutcome, chat: bool) -> dict[str, Any]:
    """Return the body of the request: greedy, streamed, with the token count at the end."""
    prompt = outcome.example.prompt
    asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return {
        "model": outcome.model,
        **asked,
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def workers_of(view: dict[str, Any]) -> list[str]:
    """Return the names of the workers in the ``route`` of ``/v1/requests/{id}``, first hop first."""
    return [str(hop["worker"]) for hop in view.get("route", [])]


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """Open a client whose requests end after ``REQUEST_SECONDS``, so that the demo never hangs."""
    client = Client(url)
    await client.connect(aiohttp.ClientSession(f"{url}/", timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)))
    try:
        yield client
    finally:
        await client.close()


async def view_of(client: Client, path: str) -> Any:
    """Return the JSON of a GET. A busy machine may stall the head for a moment, and a gateway says so with a 503: ask again.

    Raises RequestError.
    """
    for _ in range(int(AWAY_SECONDS / AGAIN)):
        try:
            return await client.get(path)
        except RequestError as error:
            if error.status != 503:
                raise
        await asyncio.sleep(AGAIN)
    return await client.get(path)


async def ask(
    client: Client, outcome: ExampleOutcome, changed: Callable[[ExampleOutcome], None], chat: bool = False, **more: Any
) -> None:
    """Run one request to its end, filling in ``outcome``. A failure is its ``error``, never an exception.

    ``more``: further fields of the request.
    """
    outcome.started = time.monotonic()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    try:
        async with client.open("POST", path, body_of(outcome, chat) | more) as answer:
            outcome.request = answer.headers.get("x-request-id", "")
            outcome.variant = answer.headers.get("x-variant", "")
            async for event in events(answer):
                absorb(outcome, event, time.monotonic())
                changed(outcome)
        outcome.ended = time.monotonic()
        if not outcome.finish and not outcome.error:
            outcome.error = "the stream ended before the answer was complete"
        outcome.route = workers_of(await client.get(f"/v1/requests/{outcome.request}"))
    except (RequestError, TimeoutError) as problem:
        outcome.ended = time.monotonic()
        outcome.error = outcome.error or f"{problem} (request {outcome.request or 'without an answer'})"
    changed(outcome)

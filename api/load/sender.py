"""The sender of a load: requests over HTTP, with the arrival times of the answers.

It uses the fields of OpenAI's API that every compatible server accepts (and ``ignore_eos`` for exact lengths), so that it
can measure any of them. It never looks inside the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..program.client import Client, events
from ..program.results import RequestError
from .figures import Outcome
from .workload import Request, Vocabulary

SAMPLE = "The quick brown fox jumps over the lazy dog while seven wizards mix black quartz and jolly hymns vex. "
SAFE = tuple(range(32, 256))  # ids that every vocabulary has, for a server without /tokenize


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The fields that all requests share."""

    model: str
    chat: bool
    ignore_eos: bool
    temperature: float

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, request: Request) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": request.prompt}
        if self.chat:
            asked = {"messages": [{"role": "user", "content": request.prompt}]}
        body = {"model": self.model, **asked, "stream": True, "stream_options": {"include_usage": True}}
        body["temperature"] = self.temperature
        if request.max_tokens is not None:
            body["max_completion_tokens" if self.chat else "max_tokens"] = request.max_tokens
        return {**body, "ignore_eos": True} if self.ignore_eos else body


async def vocabulary(client: Client, model: str) -> Vocabulary:
    """Return the vocabulary of a sample text by the server's /tokenize, or a safe one without that endpoint."""
    try:
        answer = await client.post("/tokenize", {"model": model, "prompt": SAMPLE, "add_special_tokens": False})
        tokens = [int(token) for token in answer["tokens"]]
    except (RequestError, KeyError, TypeError, ValueError):
        return Vocabulary(SAFE, 4.0)
    return Vocabulary(tuple(dict.fromkeys(tokens)), len(SAMPLE) / len(tokens))


async def send(
    client: Client,
    asking: RequestTemplate,
    load: Sequence[Request],
    concurrency: int | None,
    done: Callable[[Outcome], None] = lambda outcome: None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Outcome]:
    """Send all requests, each at its time and at most ``concurrency`` at once; return their outcomes.

    ``done`` receives each outcome. ``now`` and ``sleep``, in seconds, are the clock.
    """
    gate = asyncio.Semaphore(concurrency or len(load) or 1)
    began = now()

    async def one(request: Request) -> Outcome:
        while (left := began + request.at - now()) > 0:  # a loop's timers may fire a tick of its clock early
            await sleep(left)
        async with gate:
            outcome = await _ask(client, asking.path, asking.body(request), now)
        done(outcome)
        return outcome

    return list(await asyncio.gather(*(one(request) for request in load)))


async def _ask(client: Client, path: str, body: dict[str, Any], now: Callable[[], float]) -> Outcome:
    outcome = Outcome(now())
    try:
        async with client.open("POST", path, body) as answer:
            async for event in events(answer):
                _note(outcome, event, now())
    except RequestError as error:
        outcome.error = error.message
    except TimeoutError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.ended = now()
    if not outcome.error and not outcome.tokens:
        outcome.tokens = len(outcome.stamps)  # a server without usage sends one token in each event
    if not outcome.error and not outcome.stamps:
        outcome.error = "the answer has no tokens"
    return outcome


def _note(outcome: Outcome, event: dict[str, Any], now: float) -> None:
    if event.get("error"):
        outcome.error = str(event["error"].get("message", event["error"]))
    for choice in event.get("choices", ()):
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            outcome.stamps.append(now)
        elif choice.get("finish_reason") and not outcome.stamps:
            outcome.stamps.append(now)  # tokens without text: only their end is visible
    if event.get("usage"):
        outcome.prompt_tokens = event["usage"].get("prompt_tokens", 0)
        outcome.tokens = event["usage"].get("completion_tokens", 0)

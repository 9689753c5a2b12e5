"""Sends a load to a server over HTTP, and notes when what came back.

Uses the fields of OpenAI's API that every server of its kind takes (and ``ignore_eos`` where lengths are to be exact), so
that it measures any of them. Never looks into the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..program.client import Client, events
from ..program.results import RequestError
from .figures import Outcome
from .workload import Request, Vocabulary

SAMPLE = "The quick brown fox jumps over the lazy dog while seven wizards mix black quartz and jolly hymns vex. "
SAFE = tuple(range(32, 256))  # ids that every vocabulary has, for a server that does not tell its tokens


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """How each request is put."""

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
    """From the server's tokens of a sample text, where it has /tokenize."""
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
    """All requests, each at its time and at most ``concurrency`` of them at once; ``done`` gets each as it has ended.
    ``now`` and ``sleep``, in seconds, are the time that they go by."""
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
    except (TimeoutError, json.JSONDecodeError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.ended = now()
    if not outcome.error and not outcome.tokens:
        outcome.tokens = len(outcome.stamps)  # a server that tells no usage sends a token in each event
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
            outcome.stamps.append(now)  # tokens without text: their end is the first that is seen of them
    if event.get("usage"):
        outcome.prompt_tokens = event["usage"].get("prompt_tokens", 0)
        outcome.tokens = event["usage"].get("completion_tokens", 0)

"""The failover part of the demo: ``kill -9`` cuts streams off from their worker, and they continue with the same tokens.

Every stream runs twice, without and with the kill. Except for the kill, the demo talks to the server through its HTTP API.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from ..program.client import Client, events
from ..program.results import RequestError
from .client import view_of
from .display import TourCheck, table

STREAMS, TOKENS = 12, 400
BEGUN = 20  # tokens of a stream before the kill
BACK_SECONDS = 30.0  # seconds until the killed worker must serve again
TRIES = 3  # a kill misses all streams if the server finishes them while the machine keeps this client waiting
NAP, LEAST_REPORTED = 0.005, 0.1  # seconds between two tests of the machine; shortest wait that is reported


@dataclass(slots=True)
class KilledStream:
    """One answer as it arrived: its tokens, and the longest time between two of them."""

    prompt: str
    tokens: list[int] = field(default_factory=list)
    pause: float = 0.0  # seconds
    last: float = 0.0  # arrival of the latest token
    error: str = ""
    request: str = ""
    moved: bool = False  # it ran on the worker that died

    def take(self, tokens: list[int], now: float) -> None:
        if tokens:
            self.pause = max(self.pause, now - self.last) if self.tokens else 0.0
            self.last = now
            self.tokens += tokens


class StallTimer:
    """The longest time for which the machine did not run a thread that is nearly always asleep, in ``seconds``.

    Anything that keeps it from running keeps streams waiting, too: other programs, other guests of the host, the scheduler.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._clock, self._ended = clock, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standstill", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        last, ended = self._clock(), False
        while not ended:
            ended = self._ended.wait(NAP)
            now = self._clock()
            self.seconds, last = max(self.seconds, now - last - NAP), now


async def listen(client: Client, model: str, stream: KilledStream, heard: Callable[[], None], tokens: int = TOKENS) -> None:
    """Stream an answer of ``tokens`` tokens. ``heard`` is called after each piece. A failure is the stream's ``error``."""
    body = {"model": model, "prompt": stream.prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    try:
        async with client.open("POST", "/v1/completions", body | {"stream": True, "return_token_ids": True}) as answer:
            stream.request = answer.headers.get("x-request-id", "")
            async for event in events(answer):
                if event.get("error"):
                    stream.error = str(event["error"].get("message"))
                for choice in event.get("choices", []):
                    stream.take(choice.get("token_ids") or [], time.monotonic())
                heard()
    except (RequestError, TimeoutError) as problem:
        stream.error = str(problem) or type(problem).__name__
    finally:
        heard()


async def show_recovery(client: Client, model: str, kill: Callable[[int, int], None] = os.kill) -> list[TourCheck]:
    """Stream, kill the first worker, compare."""
    expected = [KilledStream(f"repeat {n}: stream {n} =") for n in range(1, STREAMS + 1)]
    await asyncio.gather(*(listen(client, model, one, lambda: None) for one in expected))
    print(f"\n{STREAMS} streams of {TOKENS} tokens from {model}; then kill -9 of a worker:")
    for left in reversed(range(TRIES)):
        streams = [KilledStream(one.prompt) for one in expected]
        with StallTimer() as still:
            back = await _killed(client, model, streams, kill)
        for text in back:
            print(f"  {text}")
        if not left or not back or any(one.moved for one in streams):
            break
        print("  its streams had ended by then: this machine kept the demo waiting. Again:")
    print(f"\n{pause_table(streams, expected)}\n")
    if still.seconds >= LEAST_REPORTED:
        print(f"  The machine was busy: it kept the demo itself waiting for up to {still.seconds:.2f} s.\n")
    sys.stdout.flush()
    return judge(streams, expected, bool(back))


async def _killed(client: Client, model: str, streams: list[KilledStream], kill: Callable[[int, int], None]) -> list[str]:
    """Run streams while the first worker is killed; return the server's events of that worker until it serves again."""
    view = await view_of(client, "/admin/cluster")
    victim, seen = view["workers"][0], max((event["number"] for event in view["events"]), default=0)
    killed: list[int] = []  # tokens received before the kill

    def heard() -> None:
        """Kill the worker at once, while all the others run: a small model is quick."""
        if not killed and any(len(one.tokens) >= BEGUN for one in streams):
            kill(victim["pid"], signal.SIGKILL)
            killed.append(sum(len(one.tokens) for one in streams))
            print(f"  {victim['id']} (pid {victim['pid']}) is killed after {killed[0]} tokens", flush=True)

    await asyncio.gather(*(listen(client, model, one, heard) for one in streams))
    for one in streams:
        one.moved = await _attempts(client, one.request) > 1
    return await _back(client, victim["id"], seen)


async def _attempts(client: Client, request: str) -> int:
    """Return the attempts of a request; 0 if the server has forgotten it."""
    try:
        return int((await client.get(f"/v1/requests/{request}"))["attempt"])
    except RequestError:
        return 0


async def _back(client: Client, worker: str, seen: int) -> list[str]:
    """Return the server's events of the worker until it serves again; none if it does not."""
    until = time.monotonic() + BACK_SECONDS
    while time.monotonic() < until:
        news = [event for event in (await view_of(client, "/admin/cluster"))["events"] if event["number"] > seen]
        events = [event for event in news if event["subject"] == worker and event["event"] in ("down", "ready")]
        if events and events[-1]["event"] == "ready":
            return [str(event["text"]) for event in events]
        await asyncio.sleep(0.05)
    return []


def pause_table(streams: list[KilledStream], expected: list[KilledStream]) -> str:
    """Return one row for each stream."""
    rows = [
        (
            one.prompt,
            "moved" if one.moved else "stayed",
            f"{1000 * one.pause:.0f} ms",
            str(len(one.tokens)),
            "failed" if one.error else "yes" if one.tokens == alone.tokens else "NO",
        )
        for one, alone in zip(streams, expected, strict=True)
    ]
    return table(("stream", "worker died", "longest pause", "tokens", "the same tokens"), rows)


def judge(streams: list[KilledStream], expected: list[KilledStream], back: bool) -> list[TourCheck]:
    """Return the checks: nothing was lost."""
    same = sum(one.tokens == alone.tokens and not one.error for one, alone in zip(streams, expected, strict=True))
    moved = [one for one in streams if one.moved]
    worst = max((one.pause for one in moved), default=0.0)
    return [
        TourCheck(f"{same} of {len(streams)} streams have the same tokens as without the kill", same == len(streams)),
        TourCheck(f"{len(moved)} streams lost their worker; the longest pause was {worst:.2f} s", bool(moved)),
        TourCheck("the killed worker serves again", back),
    ]

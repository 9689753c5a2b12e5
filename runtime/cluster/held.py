"""Held processes: what a launcher starts elsewhere, as the head sees it. The pipes are another process's (``holder.py``), so
the next head finds again what this one has started.

Owns the connection to that process, which is forked with the first start, and who waits for a start. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .launcher import LaunchError

HOLDER_GONE = "the process that held its pipes has ended, and it with that"
LINE = 1 << 22  # bytes of an answer


class OpenHolder(Protocol):
    """``Launcher.holder``."""

    async def __call__(self, *, fork: bool) -> socket.socket | None: ...


@dataclass(frozen=True, slots=True)
class HeldEnd:
    """The end of a held process. lived: seconds, 0 if that is not known. words: its last line. note: what it was started
    with, None if it was lost."""

    key: str
    status: int
    lived: float
    words: str
    note: Any


class ProgramFailed(LaunchError):
    """A program that cannot be run, as it is not there or no program; the text is the reason alone."""


class HeldProcesses:
    """See the module. on_said: called with a key and a line of a process that ``tells``. on_end: with each end."""

    def __init__(self, holder: OpenHolder, on_end: Callable[[HeldEnd], None], on_said: Callable[[str, str], None]) -> None:
        self._holder = holder
        self._on_end, self._on_said = on_end, on_said
        self._writer: asyncio.StreamWriter | None = None
        self._following: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._notes: dict[str, Any] = {}  # of what runs
        self.pids: dict[str, int] = {}  # its process ids
        self._leaving = False

    async def find(self) -> dict[str, Any]:
        """Return the notes of what earlier heads started and still runs, by key; report first what has ended since."""
        async with self._opening:
            await self._open(fork=False)
        return dict(self._notes)

    async def start(self, key: str, command: Sequence[str], text: str = "", *, note: Any = None, tells: bool = False) -> int:
        """Start a process and give it a line; return its id. Raises ProgramFailed, LaunchError, with the reason alone."""
        async with self._opening:
            if self._writer is None:
                await self._open(fork=True)
        self._starting[key] = future = asyncio.get_running_loop().create_future()
        self._order("start", key, command=list(command), text=text, note=note, tells=tells)
        self._notes[key] = note
        try:
            pid: int = await future
            return pid
        except asyncio.CancelledError:  # the caller gave up
            self.kill(key)
            raise

    def say(self, key: str, text: str) -> None:
        """Give a process a line. Ended: nothing."""
        self._order("say", key, text=text)

    def close(self, key: str) -> None:
        """Close the standard input of a process. Ended: nothing."""
        self._order("close", key)

    def kill(self, key: str) -> None:
        """End a process and its group. Ended: nothing."""
        self._order("kill", key)

    async def leave(self) -> None:
        """Leave all to the next head. Idempotent."""
        self._leaving = True
        if self._writer is not None:
            self._writer.close()
        await self._followed()

    async def stop(self) -> None:
        """End all, also the process that holds them. Idempotent."""
        self._leaving = True
        self._order("end")
        await self._followed()

    async def _followed(self) -> None:
        if self._following is not None:
            await self._following

    def _order(self, do: str, key: str = "", **more: Any) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps({"do": do, "key": key, **more}).encode() + b"\n")

    async def _open(self, *, fork: bool) -> None:
        """Connect to the holder, and hear what it holds."""
        if self._leaving:
            raise LaunchError("the launcher was stopped")
        end = await self._holder(fork=fork)
        if end is None:
            return
        reader, self._writer = await asyncio.open_unix_connection(sock=end, limit=LINE)
        first = json.loads(await reader.readline() or "{}")
        for key, pid, note in first.get("all", ()):
            self.pids[key], self._notes[key] = pid, note
        for answer in first.get("untold", ()):
            self._act(answer)
        self._following = asyncio.get_running_loop().create_task(self._follow(reader, self._writer))

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Act on what the holder says. When it is gone, all that it held is over."""
        with contextlib.suppress(ConnectionError):
            async for line in reader:
                self._act(json.loads(line))
        writer.close()
        self._writer = None
        if self._leaving:
            return
        for key in [*self._starting]:
            self._act({"event": "failed", "key": key, "why": HOLDER_GONE, "again": True})
        for key, note in [*self._notes.items()]:
            self._act(
                {"event": "ended", "key": key, "status": -signal.SIGKILL, "lived": 0, "words": HOLDER_GONE, "note": note}
            )

    def _act(self, answer: dict[str, Any]) -> None:
        event, key = answer.pop("event"), answer["key"]
        if event == "said":
            self._on_said(key, answer["text"])
            return
        if event == "started":
            self.pids[key] = answer["pid"]
        else:
            self._notes.pop(key, None)
            self.pids.pop(key, None)
        if event == "ended":
            self._on_end(HeldEnd(**answer))
        elif not (future := self._starting.pop(key)).done():
            if event == "started":
                future.set_result(answer["pid"])
            else:
                future.set_exception((LaunchError if answer["again"] else ProgramFailed)(answer["why"]))

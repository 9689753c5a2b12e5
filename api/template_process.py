"""Runs templates that requests bring in a process apart, which ends when one takes too long or too much.

Both ends: ``TemplateProcess`` in a gateway, started with the first such request, and ``main``, the process. A thread could
not be ended and would share the interpreter with all streams. The kernel ends the process, by the process's own timer, so
that it does not outlive its gateway either. One template at a time: those that bring templates wait for each other, nobody
else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from blockwright.api.template_engine import Engine, Rendering, TemplateFault

SECONDS = 1.0  # of processor time for one conversation
MEMORY = 1 << 30  # bytes of address space, the interpreter's 50 MiB included
FIELD = "chat_template"
_PROGRAM = "from blockwright.api.template_process import main; main()"
_LENGTH = struct.Struct(">Q")


class TemplateProcess:
    """See the module. ``close`` ends the process."""

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def render(
        self, source: str, named: Mapping[str, str], messages: Sequence[Mapping[str, Any]], how: Rendering
    ) -> str:
        """See ``Engine``. Raises TemplateFault, also for a template that takes too long or too much memory."""
        given = {"source": source, "named": named, "messages": messages, "how": dataclasses.asdict(how)}
        asked = json.dumps(given).encode()
        async with self._turn:
            try:
                answer = json.loads(await self._exchange(asked))
            except (asyncio.IncompleteReadError, ConnectionError):
                await self.close()
                limits = f"{self._seconds:g} s or {self._memory >> 20} MiB"
                raise TemplateFault(f"the chat template takes more than {limits}; let it loop less", FIELD) from None
            except BaseException:  # the client left: its answer must not be taken for the next one's
                await self.close()
                raise
        if "text" in answer:
            return str(answer["text"])
        raise TemplateFault(answer["message"], answer["param"])

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _exchange(self, asked: bytes) -> bytes:
        if self._process is not None and self._process.stdin is not None and self._process.stdin.is_closing():
            await self.close()  # somebody ended it while it had nothing to do, for which this template is not to blame
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, str(self._seconds), str(self._memory)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # signals to the gateway's group are not for it
            )
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        given.write(_LENGTH.pack(len(asked)) + asked)
        await given.drain()
        (length,) = _LENGTH.unpack(await taken.readexactly(_LENGTH.size))
        return await taken.readexactly(length)


def main() -> None:
    """The process: answers what comes on standard input until that ends."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(MemoryError, BrokenPipeError):  # which end it, and the gateway knows why
        while (asked := _read(sys.stdin.buffer)) is not None:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its end is the process's end
            answer = json.dumps(_answer(**json.loads(asked))).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.buffer.write(_LENGTH.pack(len(answer)) + answer)
            sys.stdout.buffer.flush()


def _read(given: BinaryIO) -> bytes | None:
    head = given.read(_LENGTH.size)
    return given.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _answer(source: str, named: dict[str, str], messages: list[dict[str, Any]], how: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": Engine(source, named, FIELD).render(messages, Rendering(**how))}
    except TemplateFault as fault:
        return {"message": fault.message, "param": fault.param}

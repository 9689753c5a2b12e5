"""What the server tells the person who started it: a line for each stage with its seconds, at last where and how much.

Text, or JSON objects by the setting ``log_format``. Owns the wording; ``server.py`` owns what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from ...actors.conditions import Published
from ...actors.gateway.port import GatewayPort, ModelInfo, Service
from ...actors.logs import json_line
from ...gpu.errors import CheckpointError
from ...policies.requests.admission import concurrent
from ...runtime.actor.ref import Ref
from ...runtime.base.node_view import Measure
from ..http.catalog import Catalog
from ..http.starting import Stages
from ..saving import saving

POLL_SECONDS = 0.05  # how often stages and readiness are looked at
TYPICAL = 2048  # tokens of the requests that the capacity is told in
LOGGER = "blockwright.server"


class RunningCluster(Protocol):
    """A started cluster (``actors/topology.py``)."""

    answering: Published[tuple[str, ...]]  # gateways that are processes and up
    stages: list[tuple[str, float]]  # what is done, and after how many seconds

    @property
    def port(self) -> GatewayPort | None:
        """The gateway of this process, if it has one."""

    @property
    def warnings(self) -> Sequence[str]:
        """What serves badly, each a sentence with its remedy."""

    @property
    def peer(self) -> Ref:
        """Whom this front asks for what other fronts have."""

    async def service(self) -> Service:
        """What the gateways serve."""

    async def sharing(self) -> tuple[int, int]:
        """Bytes of the parameters of all models, equal tensors once, and what sharing saves."""

    def measures(self) -> list[Measure]:
        """What the actor runtime of the head counts."""

    async def drain(self, seconds: float) -> None: ...

    async def stop(self) -> None: ...

    async def failed(self) -> object:
        """Returns the reason when the cluster can no longer be served; otherwise never."""


class Speaker:
    """One line for each thing said. ``say`` gets the lines; standard output by default."""

    def __init__(self, form: str, stages: Stages, say: Callable[[str], None] | None = None) -> None:
        self.stages = stages
        self._json = form == "json"
        self._say = say or _print

    def reach(self, stage: str, text: str = "", at: float | None = None) -> None:
        """A stage is reached; ``text`` where there is more to tell than its name, ``at`` where it was earlier."""
        seconds = self.stages.reach(stage, at)
        self._line("info", f"[{seconds:6.2f} s] ", text or stage, stage=stage, seconds=round(seconds, 3))

    def note(self, text: str) -> None:
        """Something that is no stage."""
        seconds = self.stages.now()
        self._line("info", f"[{seconds:6.2f} s] ", text, seconds=round(seconds, 3))

    def warn(self, text: str) -> None:
        self._line("warning", "warning: ", text)

    def fatal(self, reason: object) -> int:
        """On standard error; the exit code."""
        text = f"blockwright: {reason}"
        if self._json:
            text = json_line("head", LOGGER, "critical", str(reason), time.time())
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
        return 2

    def _line(self, level: str, before: str, text: str, **more: Any) -> None:
        self._say(json_line("head", LOGGER, level, text, time.time(), **more) if self._json else before + text)


def _print(line: str) -> None:
    """A full disk, or a reader that has gone, is no reason not to serve: the line is lost."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = os.fdopen(1, "w", closefd=False)  # without the line, which the exit would try to write again


def capacity(models: Sequence[ModelInfo], rows: int) -> str:
    """How many requests of a usual length fit the memory for KV; ``rows``: the setting ``max_rows``. "" when unknown.

    Each model is told as if it had the memory for itself.
    """
    told: dict[str, list[str]] = {}  # how many -> of which models
    for info in models:
        length = min(TYPICAL, info.max_length)
        if info.rooms:
            text = f"about {max(1, concurrent(info.rooms, length, rows)):,} concurrent requests of {length:,} tokens"
            if (longest := max(info.longest, *info.rooms)) < length:
                text = f"requests of at most {longest:,} tokens (--set memory=... with more gives room for longer ones)"
            told.setdefault(text, []).append(info.id)
    if len(told) == 1:
        return f"room for {next(iter(told))}"
    return "room for " + ", or ".join(f"{text} of {_either(names)}" for text, names in told.items()) if told else ""


def _either(names: Sequence[str]) -> str:
    """A few by name: a server may have hundreds."""
    return " or ".join(names) if len(names) < 4 else f"any of {len(names)} models"


class StartupReporter:
    """The lines of one start-up.

    offset: seconds from the server's beginning to the cluster's. rows: max_rows. named: ids of the models that the settings
    name; what is served beside them ends no start-up. logged: the log tells which models are ready, so no line here does.
    """

    def __init__(
        self,
        running: RunningCluster,
        speaker: Speaker,
        *,
        offset: float,
        rows: int,
        named: Collection[str] = (),
        logged: bool = False,
    ) -> None:
        self._running, self._speaker, self._offset, self._rows = running, speaker, offset, rows
        self._named, self._logged = named, logged
        self._shown = 0  # stages
        self._warned = 0
        self._room = ""  # what has been said of it, once the server is ready

    async def follow(self) -> None:
        """A line for each of the cluster's stages, as it comes. Never returns."""
        while True:
            if self.show_stages() and self._room:  # further workers may have come: there is more room
                room = capacity((await self._running.service()).models, self._rows)
                if room not in ("", self._room):
                    self._room = room
                    self._speaker.note(f"now {room}")
            await asyncio.sleep(POLL_SECONDS)

    def show_stages(self) -> bool:
        """What the cluster has reached and warns of meanwhile; whether there was anything new."""
        for text in self._running.warnings[self._warned :]:
            self._speaker.warn(text)
            self._warned += 1
        new = self._running.stages[self._shown :]
        for name, seconds in new:
            self._speaker.reach(name, at=self._offset + seconds)
        self._shown += len(new)
        return bool(new)

    async def announce(self, catalog: Catalog, address: str) -> None:
        """A line for each model that gets ready, then the one with address, ids and capacity. Raises CheckpointError."""
        while not (service := await self._running.service()).models:  # noqa: ASYNC110 - another process has them
            await asyncio.sleep(POLL_SECONDS)
        for info in service.models:
            try:
                await catalog.load(info)
            except CheckpointError as error:
                if info.id in self._named:
                    raise
                self._speaker.warn(f"{info.id} cannot be asked in text: {error}")  # it was added before a restart
        self._speaker.reach("tokenizers loaded")
        if self._running.port is None:
            catalog.forget()  # that they can be loaded is all that this process wants to know
        told: list[str] = []
        while len(told) < len((service := await self._running.service()).models):
            states = service.readiness.applications
            there = {name for name, state in states.items() if state in ("ready", "on demand", "failed")}
            new = [info.id for info in service.models if info.id in there and info.id not in told]
            if new:
                self.show_stages()  # which came before
            on = {info.id: f" (on {info.base})" if info.base else "" for info in service.models}
            absent = [f"{name}{on[name]}" for name in new if states[name] == "on demand"]
            for name in (name for name in new if states[name] == "failed" or (states[name] == "ready" and not self._logged)):
                self._speaker.note(f"{name}{on[name]} {'cannot be loaded' if states[name] == 'failed' else 'is ready'}")
            if absent:  # there may be hundreds
                few = ", ".join(absent[:8]) + f" and {len(absent) - 8} more" * (len(absent) > 8)
                self._speaker.note(f"loaded when asked for: {few}")
            told += new
            if not new:
                await asyncio.sleep(POLL_SECONDS)
        gc.collect()
        gc.freeze()  # what has been loaded stays: no later collection walks it
        stored, saved = await self._running.sharing()
        service = await self._running.service()  # a worker may have come meanwhile: there is more room
        self.show_stages()  # first: the start-up ends with where and how much
        self._room = capacity(service.models, self._rows)
        if saved:
            self._speaker.note(saving(len(service.models), stored, saved))
        ids = ", ".join(info.id for info in service.models)
        more = f"; {self._room}{self._rest(service)}" if self._room else ""
        self._speaker.reach("ready", f"ready at {address}/v1 with models: {ids}{more}")

    def _rest(self, service: Service) -> str:
        """Return what is added to the room while a worker that is to serve a model has not loaded it yet."""
        loaded = any(name == "loaded" for name, _ in self._running.stages)
        if loaded or "failed" in service.readiness.applications.values():  # of which no worker has it, and none will
            return ""
        return " on the workers that have loaded, others are still loading"

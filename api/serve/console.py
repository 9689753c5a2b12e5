"""The console output of a server: a line for each start-up stage with its seconds, and at last address and capacity.

Lines are text, or JSON objects by the setting ``log_format``. This module owns the wording; ``server.py`` owns the actions.
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
from ...policies.measures import Measure
from ...policies.requests.admission import concurrent
from ...runtime.actor.ref import Ref
from ..http.catalog import Catalog
from ..http.starting import Stages
from ..saving import saving

POLL_SECONDS = 0.05  # seconds between two checks of stages and readiness
TYPICAL = 2048  # tokens of a typical request, the unit of the reported capacity
KERNELS = "kernels"  # the stage in which workers compile them for the first time, and prove their bits
LOGGER = "blockwright.server"


class RunningCluster(Protocol):
    """A started cluster (``actors/topology.py``)."""

    answering: Published[tuple[str, ...]]  # gateways that are processes and up
    stages: list[tuple[str, float]]  # completed stages, with their seconds since the start

    @property
    def port(self) -> GatewayPort | None:
        """The gateway of this process, if it has one."""

    @property
    def warnings(self) -> Sequence[str]:
        """Conditions under which the cluster serves badly, each a sentence with its remedy."""

    @property
    def preparing(self) -> Sequence[str]:
        """The kernels that workers still compile for the first time, and how far each worker is."""

    @property
    def peer(self) -> Ref:
        """The actor that answers for other fronts."""

    async def service(self) -> Service:
        """Return the models that the gateways serve, and their readiness."""

    async def sharing(self) -> tuple[int, int]:
        """Return the bytes of all models' parameters, equal tensors once, and the bytes that sharing saves."""

    def measures(self) -> list[Measure]:
        """Return the counters of the head's actor runtime."""

    async def drain(self, seconds: float) -> None: ...

    async def stop(self) -> None: ...

    async def failed(self) -> object:
        """Return the reason when the cluster can no longer be served; never return otherwise."""


class Console:
    """The writer of console lines. ``say`` receives each line; by default it prints on standard output."""

    def __init__(self, form: str, stages: Stages, say: Callable[[str], None] | None = None) -> None:
        self.stages = stages
        self._json = form == "json"
        self._say = say or _print

    def reach(self, stage: str, text: str = "", at: float | None = None) -> None:
        """Report a reached stage. ``text``: replaces its name. ``at``: given if it was reached earlier."""
        seconds = self.stages.reach(stage, at)
        self._line("info", f"[{seconds:6.2f} s] ", text or stage, stage=stage, seconds=round(seconds, 3))

    def note(self, text: str) -> None:
        """Report an event that is not a stage."""
        seconds = self.stages.now()
        self._line("info", f"[{seconds:6.2f} s] ", text, seconds=round(seconds, 3))

    def warn(self, text: str) -> None:
        self._line("warning", "warning: ", text)

    def fatal(self, reason: object) -> int:
        """Report a fatal error on standard error and return the exit code."""
        text = f"blockwright: {reason}"
        if self._json:
            text = json_line("head", LOGGER, "critical", str(reason), time.time())
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
        return 2

    def _line(self, level: str, before: str, text: str, **more: Any) -> None:
        self._say(json_line("head", LOGGER, level, text, time.time(), **more) if self._json else before + text)


def _print(line: str) -> None:
    """Print a line, or drop it: a full disk or a closed pipe is no reason to stop serving."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = os.fdopen(1, "w", closefd=False)  # discards the line, which the exit would try to write again


def capacity(models: Sequence[ModelInfo], rows: int) -> str:
    """Return how many typical requests fit into the KV memory; "" if unknown. ``rows``: the setting ``max_rows``.

    Each model is counted as if it had the memory to itself.
    """
    models_by_room: dict[str, list[str]] = {}  # capacity in words -> ids of the models that have it
    for info in models:
        length = min(TYPICAL, info.max_length)
        if info.rooms:
            count = max(1, concurrent(info.rooms, length, rows))
            text = f"about {count:,} concurrent request{'s' * (count != 1)} of {length:,} tokens"
            if (longest := max(info.longest, *info.rooms)) < length:
                text = f"requests of at most {longest:,} tokens (--set memory=... with more gives room for longer ones)"
            models_by_room.setdefault(text, []).append(info.id)
    if len(models_by_room) == 1:
        return f"room for {next(iter(models_by_room))}"
    rooms = [f"{text} to {_either(names)}" for text, names in models_by_room.items()]
    return f"room for {', or '.join(rooms)}" if rooms else ""


def _either(names: Sequence[str]) -> str:
    """Return a few ids by name, or their number: a server may have hundreds."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if len(names) < 4 else f"any of {len(names)} models"


class StartupReporter:
    """The console lines of one start-up.

    offset: seconds between the starts of the server and of the cluster. rows: max_rows. named: ids of the models that the
    settings name; a fault of another model does not end the start-up. logged: the log reports ready models, so no line here
    does.
    """

    def __init__(
        self,
        running: RunningCluster,
        console: Console,
        *,
        offset: float,
        rows: int,
        named: Collection[str] = (),
        logged: bool = False,
    ) -> None:
        self._running = running
        self._console = console
        self._offset = offset
        self._rows = rows
        self._named, self._logged = named, logged
        self._shown = 0  # number of stages that were reported
        self._warned = 0
        self._preparing: Sequence[str] = ()
        self._room = ""  # the reported capacity, once the server is ready

    async def follow(self) -> None:
        """Report each of the cluster's stages as it comes. Never returns."""
        while True:
            if self.show_stages() and self._room:  # further workers may have joined, which adds capacity
                room = capacity((await self._running.service()).models, self._rows)
                if room not in ("", self._room):
                    self._room = room
                    self._console.note(f"now {room}")
            await asyncio.sleep(POLL_SECONDS)

    def show_stages(self) -> bool:
        """Report new stages and warnings; return True if there were new stages."""
        for text in self._running.warnings[self._warned :]:
            self._console.warn(text)
            self._warned += 1
        self._show_preparing()
        new = self._running.stages[self._shown :]
        for name, seconds in new:
            self._console.reach(name, at=self._offset + seconds)
        self._shown += len(new)
        return bool(new)

    def _show_preparing(self) -> None:
        """Report how far workers are with their kernels, once for each change: a stage at the beginning and the end."""
        known, self._preparing = self._preparing, tuple(self._running.preparing)
        for text in [text for text in self._preparing if text not in known]:
            if known:
                self._console.note(text)
            else:
                self._console.reach(KERNELS, text)
                known = self._preparing[:1]
        if known and not self._preparing:
            self._console.reach("kernels ready")

    async def announce(self, catalog: Catalog, address: str) -> None:
        """Report each model that becomes ready, then address, ids and capacity. Raise CheckpointError."""
        while not (service := await self._running.service()).models:  # noqa: ASYNC110 - another process has them
            await asyncio.sleep(POLL_SECONDS)
        for info in service.models:
            try:
                await catalog.load(info)
            except CheckpointError as error:
                if info.id in self._named:
                    raise
                self._console.warn(f"{info.id} cannot be asked in text: {error}")  # the model was added before a restart
        self._console.reach("tokenizers loaded")
        if self._running.port is None:
            catalog.forget()  # this process only checks that they load
        shown: list[str] = []
        while len(shown) < len((service := await self._running.service()).models):
            states = service.readiness.applications
            there = {name for name, state in states.items() if state in ("ready", "on demand", "failed")}
            new = [info.id for info in service.models if info.id in there and info.id not in shown]
            if new:
                self.show_stages()  # stages come before the models that they made ready
            on = {info.id: f" (on {info.base})" if info.base else "" for info in service.models}
            absent = [f"{name}{on[name]}" for name in new if states[name] == "on demand"]
            for name in (name for name in new if states[name] == "failed" or (states[name] == "ready" and not self._logged)):
                self._console.note(f"{name}{on[name]} {'cannot be loaded' if states[name] == 'failed' else 'is ready'}")
            if absent:  # there may be hundreds
                few = ", ".join(absent[:8]) + f" and {len(absent) - 8} more" * (len(absent) > 8)
                self._console.note(f"loaded when asked for: {few}")
            shown += new
            if not new:
                await asyncio.sleep(POLL_SECONDS)
        gc.collect()
        gc.freeze()  # loaded objects stay: later collections skip them
        stored, saved = await self._running.sharing()
        service = await self._running.service()  # a worker may have joined meanwhile, which adds capacity
        self.show_stages()  # first, because the start-up ends with address and capacity
        self._room = capacity(service.models, self._rows)
        if saved:
            self._console.note(saving(len(service.models), stored, saved))
        ids = ", ".join(info.id for info in service.models)
        more = f"; {self._room}{self._rest(service)}" if self._room else ""
        self._console.reach("ready", f"ready at {address}/v1 with models: {ids}{more}")

    def _rest(self, service: Service) -> str:
        """Return an addition to the capacity while some worker has not loaded its model yet."""
        loaded = any(name == "loaded" for name, _ in self._running.stages)
        if loaded or "failed" in service.readiness.applications.values():  # a failed model will not be loaded by any worker
            return ""
        return "; more when all workers have loaded"

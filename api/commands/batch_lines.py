"""The lines of a batch's file as the server would process them, without a server: checked, rendered and tokenized.

Not a command. The checks are the endpoints' own; refused lines are counted and reported, not raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from . import CommandError

if TYPE_CHECKING:
    from ...actors.config import Settings
    from ...actors.gateway.port import ModelInfo
    from ..batches.local_files import BatchInput
    from ..http.context import Front
    from ..program.progress import Bar


@dataclass(slots=True)
class BatchRequests:
    """The lines of a file.

    ``prompts``: packed. ``limits``: most tokens of each answer. ``refused``: line number from 1, reason.
    """

    prompts: list[bytes] = field(default_factory=list)
    limits: array[int] = field(default_factory=lambda: array("q"))
    refused: list[tuple[int, str]] = field(default_factory=list)


class _Served:
    """A stand-in for a gateway that serves one model: the only part of a gateway that checking a line needs."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def models(self) -> list[ModelInfo]:
        return [self._info]


def read_requests(path: Path, settings: Settings, info: ModelInfo, bar: Bar) -> BatchRequests:
    """Return the requests of a file; raise CommandError if it cannot be read or has no request that could run."""
    from ..batches.local_files import BatchFileError, BatchInput

    try:
        with contextlib.closing(BatchInput(path)) as given:
            found = asyncio.run(_checked(given, settings, info, bar))
    except BatchFileError as error:
        raise CommandError(str(error), 2) from None
    if not found.prompts:
        number, why = found.refused[0]
        raise CommandError(f"{path} has no request that could run; line {number}: {why}", 2)
    return found


async def _checked(given: BatchInput, settings: Settings, info: ModelInfo, bar: Bar) -> BatchRequests:
    from ...policies.offline.prefix_tree import packed
    from ..batches.lines import prepare
    from ..errors import ApiError
    from ..http.auth import ApiCaller

    front, caller = _front(settings, info), ApiCaller()
    found = BatchRequests(refused=[(given.number(line), error.message) for line, error in given.refused.items()])
    bar.begin("reading")
    try:
        for line in given.good():
            try:
                prepared = await prepare(front, caller, given.line(line))
            except ApiError as refused:
                found.refused.append((given.number(line), refused.message))
            else:
                found.prompts.append(packed(prepared.prompt))
                found.limits.append(prepared.limit)
            bar.advance(1)
    finally:
        front.catalog.close()
    found.refused.sort()
    return found


def _front(settings: Settings, info: ModelInfo) -> Front:
    from ...actors.gateway.port import GatewayPort
    from ..http.auth import Keys, ModelAccess
    from ..http.body_memory import BodyMemory
    from ..http.catalog import Catalog
    from ..http.context import Front
    from ..http.cors import Cors
    from ..http.hosts import Hosts
    from ..http.limits import TenantLimits
    from ..http.metrics import Metrics
    from ..http.starting import Stages

    port = cast(GatewayPort, _Served(info))
    return Front(
        port=port,
        settings=settings,
        catalog=Catalog(port, settings.max_characters),
        keys=Keys({}, {}),
        metrics=Metrics(dict),
        max_body=settings.largest_body,
        bodies=BodyMemory(settings.largest_body),
        access=ModelAccess(settings.tenant_models),
        limits=TenantLimits(port),
        cors=Cors(settings.cors_origins),
        hosts=Hosts(settings),
        stages=Stages(),
    )

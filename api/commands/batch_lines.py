"""The lines of a batch's file as the server would take them, without a server: checked, rendered and tokenized.

Not a command. Runs the same checks as the endpoints; what they refuse is counted and told, not raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from blockwright.api.commands import CommandError

if TYPE_CHECKING:
    from blockwright.actors.config import Settings
    from blockwright.actors.gateway.port import ModelInfo
    from blockwright.api.http.context import Front


@dataclass(slots=True)
class BatchRequests:
    """``prompts``: packed; ``limits``: tokens of each answer at most; ``refused``: number of a line, from 1, and why."""

    prompts: list[bytes] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


class _Served:
    """What there would be to ask, if it were served: the one thing of a gateway that checking a line needs."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def models(self) -> list[ModelInfo]:
        return [self._info]


def read_requests(path: Path, settings: Settings, info: ModelInfo, tell: Callable[[int], None]) -> BatchRequests:
    """``tell``: how many bytes more were read. Raises CommandError for a file that cannot be read or has no requests."""
    try:
        found = asyncio.run(_read(path, settings, info, tell))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); check IN", 2) from None
    if not found.prompts:
        first = f"; line {found.refused[0][0]}: {found.refused[0][1]}" if found.refused else ""
        raise CommandError(f"{path} has no request that could run{first}", 2)
    return found


async def _read(path: Path, settings: Settings, info: ModelInfo, tell: Callable[[int], None]) -> BatchRequests:
    from blockwright.api.batches.lines import LineRefused, parse_line, prepare
    from blockwright.api.errors import ApiError
    from blockwright.api.http.auth import ApiCaller
    from blockwright.policies.offline.prefix_tree import packed

    front, caller, found = _front(settings, info), ApiCaller(), BatchRequests()
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                tell(len(raw))
                if raw.isspace():
                    continue
                try:
                    prepared = await prepare(front, caller, parse_line(raw))
                except (LineRefused, ApiError) as refused:
                    found.refused.append((number, refused.message))
                else:
                    found.prompts.append(packed(prepared.prompt))
                    found.limits.append(prepared.limit)
    finally:
        front.catalog.close()
    return found


def _front(settings: Settings, info: ModelInfo) -> Front:
    from blockwright.actors.gateway.port import GatewayPort
    from blockwright.api.http.auth import Keys, ModelAccess
    from blockwright.api.http.catalog import Catalog
    from blockwright.api.http.context import Front
    from blockwright.api.http.cors import Cors
    from blockwright.api.http.hosts import Hosts
    from blockwright.api.http.limits import TenantLimits
    from blockwright.api.http.metrics import Metrics
    from blockwright.api.http.starting import Stages

    port = cast(GatewayPort, _Served(info))
    return Front(
        port=port,
        settings=settings,
        catalog=Catalog(port, settings.max_characters),
        keys=Keys({}, {}),
        metrics=Metrics(dict),
        max_body=settings.max_body,
        access=ModelAccess(settings.tenant_models),
        limits=TenantLimits(port),
        cors=Cors(settings.cors_origins),
        hosts=Hosts(settings),
        stages=Stages(),
    )

"""Servers whose batches run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.api.batches.batch_rig import BatchRig, Start


@pytest.fixture
async def start(serve: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """``rig, port = await start(script, settings={...}, key="")``: batches run."""
    rigs = []

    async def make(
        script: Any, settings: dict[str, Any] | None = None, key: str = "", **options: Any
    ) -> tuple[BatchRig, Any]:
        client, port = await serve(script, settings={"batch_dir": str(tmp_path), **(settings or {})}, **options)
        rigs.append(BatchRig(client, key))
        await rigs[-1].start()
        return rigs[-1], port

    yield make
    for rig in rigs:
        await rig.stop()

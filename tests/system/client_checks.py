"""Runs a client's checks of ``tests/compat`` in a process of its own, as its users would."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from blockwright.tests.waiting import PATIENCE


async def run_checks(checks: Path, *arguments: str) -> int:
    """All pass; how many there are."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(checks), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors.decode()) == (0, ""), output.decode()
    return output.decode().count("ok  ")

"""The openai package, unmodified and in a process of its own, against a served checkpoint: ``tests/compat/check_openai.py``.

The other clients, and openai 2.x, are ``make compat``'s.
"""

import asyncio
import sys
from pathlib import Path

from blockwright.tests.equality.served import serve
from blockwright.tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "tests" / "compat" / "check_openai.py"


async def test_the_openai_client() -> None:
    async with serve({"demo-checkpoint": ROOT / "examples" / "demo-checkpoint"}, memory=64 << 20) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHECKS),
            server.url,
            "demo-checkpoint",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, errors.decode()) == (0, ""), output.decode()
    assert output.decode().count("ok  ") >= 20

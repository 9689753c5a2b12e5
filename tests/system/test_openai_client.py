"""The openai package, unmodified and in a process of its own, against a served checkpoint: ``tests/compat/check_openai.py``.

The other clients, and openai 2.x, are ``make compat``'s.
"""

from pathlib import Path

from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.system.client_checks import run_checks

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "tests" / "compat" / "check_openai.py"


@claim("The official openai client works unmodified", of="http-api", headline=True)
async def test_the_openai_client() -> None:
    async with serve({"demo-checkpoint": ROOT / "examples" / "demo-checkpoint"}, memory=64 << 20) as server:
        assert await run_checks(CHECKS, server.url, "demo-checkpoint") >= 20

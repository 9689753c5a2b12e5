"""Responses of a served random model, by the official client: the structure is right although the words are random."""

from pathlib import Path

import pytest

from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.system.client_checks import run_checks

pytestmark = pytest.mark.system
CHECKS = Path(__file__).parents[2] / "tests" / "compat" / "check_responses.py"


@claim("The openai client reads every answer and event of /v1/responses by its own types", of="http-api")
async def test_the_openai_client_with_responses(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(QWEN3)
    async with serve({"m": folder}) as server:
        assert await run_checks(CHECKS, server.url, "m", "1") >= 18

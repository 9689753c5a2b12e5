"""Tools on a served random model, by the official client: the structure is right although the words are random."""

from pathlib import Path

import pytest

from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.system.client_checks import run_checks

pytestmark = pytest.mark.system
CHECKS = Path(__file__).parents[2] / "tests" / "compat" / "check_tools.py"
OPENED = "{%- if open %}{{- '<think>\\n' }}{%- endif %}"


@claim(
    "A named or required tool is called with arguments by its schema, whatever the model; the openai client reads it",
    of="tools",
)
async def test_the_openai_client_with_tools(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(QWEN3 + OPENED)
    async with serve({"m": folder}) as server:
        assert await run_checks(CHECKS, server.url, "m") >= 10

"""``responses``: a server of a model in the manner of Qwen 3, and tools in the flat form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.api.fake_port import EOS, one_by_one
from blockwright.tests.api.text.turn.chat_templates import QWEN3

PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "description": "of a place", "parameters": PLACE}
PATCH = {"type": "custom", "name": "patch", "description": "of a file"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Bern"}}\n</tool_call>'


@pytest.fixture
def responses(serve: Any, codec: Any, folder: Path, tmp_path: Path) -> Callable[..., Awaitable[tuple[Any, Any]]]:
    """``client, port = await responses(text)``: a server whose model answers with this text."""

    async def make(text: str = "", settings: Any = None, template: str = QWEN3, length: int = 8192) -> tuple[Any, Any]:
        tokens = [*codec.encode(text, special=False), EOS]
        made = tmp_path / "qwen"
        if not made.exists():
            shutil.copytree(folder, made)
            file = made / "tokenizer_config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
        client, port = await serve(lambda generation: one_by_one(tokens, "stop"), settings=settings, folder=made)
        port.infos = [replace(info, max_length=length, rooms=(2 * length,)) for info in port.infos]
        return client, port

    return make

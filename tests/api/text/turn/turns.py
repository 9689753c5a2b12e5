"""Turn templates of tests: each known one, with the chat template that it goes with."""

from __future__ import annotations

import json
from typing import Any

from blockwright.api.text.turn.known import known_template
from blockwright.tests.api.text.turn.chat_templates import GRANITE, MISTRAL, QWEN3


def known(source: str) -> dict[str, Any]:
    found = known_template(source)
    assert found is not None
    return found


TURNS = {"qwen": known(QWEN3), "mistral": known(MISTRAL), "granite": known(GRANITE)}
SOURCES = {"qwen": QWEN3, "mistral": MISTRAL, "granite": GRANITE}


def written(kind: str, reasoning: str, content: str, calls: list[tuple[str, Any]]) -> str:
    """A turn as a model of that kind writes it."""
    bodies = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
    if kind == "qwen":
        thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
        return thought + "\n".join(
            [*([content] if content else []), *(f"<tool_call>\n{one}\n</tool_call>" for one in bodies)]
        )
    mark = "[TOOL_CALLS]" if kind == "mistral" else "<|tool_call|>"
    return content + (f"{mark}[{', '.join(bodies)}]" if calls else "")

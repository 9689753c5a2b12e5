"""Turn templates of tests: each known one, with the chat template that it goes with."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

from blockwright.api.text.chat_template import ChatTemplate, Rendering
from blockwright.api.text.turn.known_templates import known_template
from blockwright.api.text.turn.reader import TurnDelta, TurnReader
from blockwright.api.text.turn.schema_types import type_of
from blockwright.api.text.turn.template import read_template
from blockwright.tests.api.text.turn import chat_templates

# kind: chat template, and the text behind a turn
SOURCES = {
    "qwen": (chat_templates.QWEN3, "<|im_end|>\n"),
    "mistral": (chat_templates.MISTRAL, "</s>"),
    "granite": (chat_templates.GRANITE, "<|end_of_text|>\n"),
    "llama3": (chat_templates.LLAMA3, "<|eot_id|>"),
    "llama4": (chat_templates.LLAMA4, "<|eot|>"),
    "ministral": (chat_templates.MINISTRAL, "</s>"),
    "mistral small": (chat_templates.MISTRAL_SMALL, "</s>"),
    "coder": (chat_templates.CODER, "<|im_end|>\n"),
    "glm": (chat_templates.GLM, ""),
    "harmony": (chat_templates.HARMONY, ""),
    "phi": (chat_templates.PHI, "<|end|>"),
    "gemma": (chat_templates.GEMMA4, "<turn|>\n"),
    "gemma function": (chat_templates.GEMMA_FUNCTION, "<end_of_turn>\n"),
    "olmo": (chat_templates.OLMO, "<|im_end|>\n"),
    "lfm": (chat_templates.LFM, "<|im_end|>\n"),
}
SINGLE = {"llama3"}  # one call in a turn
ALONE = {"llama3", "llama4"}  # a text or calls
PYTHON = {"llama4", "olmo", "lfm"}  # kinds that transformers has no reader for
LITERALS = {"gemma", "gemma function", *PYTHON}  # kinds whose arguments are almost JSON
BARE_NAMES = {"llama4", "coder", "glm", "gemma", "gemma function", "olmo", "lfm"}  # names of arguments are words


def known(source: str) -> dict[str, Any]:
    found = known_template(source)
    assert found is not None
    return found


TURNS = {kind: known(source) for kind, (source, _) in SOURCES.items()}
THINKERS = {kind for kind, turn in TURNS.items() if "thinking" in turn["fields"]}


@cache
def chat_template(kind: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[kind][0], {"bos_token": "<s>", "eos_token": "</s>"})


def written(kind: str, reasoning: str, content: str, calls: list[tuple[str, Any]]) -> str:
    """A turn as the chat template of that kind writes it."""
    if not (reasoning or content or calls):
        return ""
    listed = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    turn |= {"reasoning_content": reasoning} if reasoning else {}
    turn |= {"tool_calls": listed} if listed else {}
    ask = {"role": "user", "content": "hi"}

    def rendered(messages: list[dict[str, Any]], begin: bool) -> str:
        how = Rendering(begin=begin, proceed=False, variables={}, longest=10**6)
        return chat_template(kind).render(messages, how)

    prompt = rendered([ask], True)
    whole = rendered([ask, turn], False)
    assert whole.startswith(prompt), (prompt, whole)
    return whole[len(prompt) :].removesuffix(SOURCES[kind][1])


def schemas_of(calls: list[tuple[str, Any]]) -> dict[str, Any]:
    """Schemas that say the types of the arguments, as those of tools do."""
    return {
        name: {"type": "object", "properties": {key: {"type": type_of(value)} for key, value in arguments.items()}}
        for name, arguments in calls
    }


class Turn:
    """The parts that deltas join to."""

    def __init__(self, deltas: list[TurnDelta]) -> None:
        self.reasoning = "".join(delta.reasoning for delta in deltas)
        self.content = "".join(delta.content for delta in deltas)
        self.calls: list[list[str]] = []
        for piece in (delta.call for delta in deltas if delta.call is not None):
            if piece.name:
                assert piece.index == len(self.calls)
                self.calls.append([piece.name, ""])
            self.calls[piece.index][1] += piece.arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turn) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read(kind: str, text: str, cuts: tuple[int, ...] = (), begun: str = "", **how: Any) -> Turn:
    reader = TurnReader(read_template(TURNS[kind]), begun, **how)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    deltas = [delta for a, b in pairwise(places) for delta in reader.feed(text[a:b])]
    return Turn(deltas + reader.finish())

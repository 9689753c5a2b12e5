"""Function calling in the manner of the Berkeley leaderboard, judged by structure: a random model, each form of calls."""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.tests.api.text.turn.turns import SINGLE, SOURCES
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve

pytestmark = pytest.mark.system
DAILY = ("coder", "harmony", "lfm")
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": ["boolean", "null"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
POINTS = {
    "type": "object",
    "properties": {
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
        "label": {"anyOf": [{"const": "a-b"}, {"const": "c"}]},
    },
    "required": ["points"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "far": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"weather": PLACE, "draw.lines": POINTS}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "draw.lines"}}
KINDS: dict[str, dict[str, Any]] = {
    "simple": {"tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": TOOLS, "tool_choice": NAMED},
    "multiple": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "parallel": {"tools": TOOLS, "tool_choice": "required"},
    "none": {"tools": TOOLS, "tool_choice": "none", "max_tokens": 20},
    "strict": {"tools": [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}], "max_tokens": 40},  # type: ignore[dict-item]
}


async def asked(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    async with server.session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
    choice: dict[str, Any] = found["choices"][0]
    return choice


async def streamed(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    """The same answer from its stream."""
    made: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    async with server.session.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True}) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                made["finish_reason"] = choice["finish_reason"] or made["finish_reason"]
                for part in ("content", "reasoning"):
                    made[part] += choice["delta"].get(part) or ""
                for call in choice["delta"].get("tool_calls", ()):
                    if "id" in call:
                        made["calls"].append([call["function"]["name"], ""])
                    made["calls"][call["index"]][1] += call["function"]["arguments"]
    return made


def check(model: str, kind: str, choice: dict[str, Any]) -> None:
    """An answer has the structure that this kind asks for. One that was cut off has a beginning of it."""
    message, said = choice["message"], KINDS[kind]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    cut = choice["finish_reason"] == "length"
    for name, arguments in calls[: len(calls) - cut]:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert name == "draw.lines" or kind != "named"
        assert kind != "simple" or name == "weather"
    if kind == "none":
        assert not calls
    elif said.get("tool_choice"):
        assert calls or cut, choice
        assert cut or not message["content"], choice
        assert choice["finish_reason"] in ("tool_calls", "length")
    if not said.get("parallel_tool_calls", kind != "named") or model in SINGLE:
        assert len(calls) <= 1


REST = pytest.param(sorted({*SOURCES} - {*DAILY}), id="rest", marks=pytest.mark.nightly)


@claim("Function calls have the structure that a request asks for, whatever the model, in each form of calls", of="tools")
@pytest.mark.parametrize("models", [pytest.param(DAILY, id="daily"), REST])
async def test_kinds_of_function_calls(tmp_path: Path, models: tuple[str, ...]) -> None:
    first = make_checkpoint(tmp_path / "first", max_position_embeddings=4096)
    folders = {}
    for number, model in enumerate(models):
        folders[model.replace(" ", "-")] = folder = tmp_path / f"m{number}"
        shutil.copytree(first, folder)
        (folder / "chat_template.jinja").write_text(SOURCES[model][0])
    seeds = range(1) if models is DAILY else range(3)
    async with serve(folders) as server:
        for model, kind, seed in product(models, KINDS, seeds):
            body = {"model": model.replace(" ", "-"), "messages": [{"role": "user", "content": "go"}], "seed": seed}
            body |= {"temperature": 1.0, "max_tokens": 300, **KINDS[kind]}
            choice = await asked(server, body)
            check(model, kind, choice)
            message, stream = choice["message"], await streamed(server, body)
            calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
            assert stream["calls"] == calls
            said = message["content"] or "", message.get("reasoning", "")
            assert (stream["content"], stream["reasoning"]) == said


MARK = 0  # the token that opens a call


def with_mark(folder: Path) -> Path:
    """A model in the manner of Qwen 3 whose tokenizer has the mark of a call as a special token."""
    make_checkpoint(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(SOURCES["qwen"][0])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace("<unk>", "<tool_call>"))
    return folder


@claim("With tool_choice auto, free text has the bits that it has without tools, and calls follow their schemas", of="tools")
async def test_free_text_and_calls_of_auto(tmp_path: Path) -> None:
    folder = with_mark(tmp_path / "m")
    common = {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": TOOLS, "temperature": 1.0}
    common |= {"max_tokens": 250, "return_token_ids": True}
    often = [
        {"seed": seed, "logit_bias": {MARK: 5.5}, "ignore_eos": seed % 2 == 1, "draft": "prompt" if seed % 3 == 1 else "off"}
        for seed in range(6)
    ]
    found: dict[str, list[Any]] = {}
    for forced in ("on", "off"):
        async with serve({"m": folder}, forced=forced) as server:
            choices = [await asked(server, common | fields) for fields in often]
            together = await asyncio.gather(*(asked(server, common | fields) for fields in often))
            assert [one["token_ids"] for one in together] == [one["token_ids"] for one in choices]
            found[forced] = [one["token_ids"] for one in choices]
            calls = [
                call["function"]
                for one in choices
                for call in one["message"].get("tool_calls", [])[: -1 if one["finish_reason"] == "length" else None]
            ]
            assert len(calls) > len(often)  # several in one answer
            for call in calls:
                jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
            assert any(one["message"]["content"] for one in choices)  # and text beside them
            never = {"seed": 7, "logit_bias": {MARK: -100}, "logprobs": True, "max_tokens": 60}
            async with server.session.post(f"{server.url}/v1/chat/completions", json=common | never) as answer:
                body = await answer.json()
            prompt = body["prompt_token_ids"]
            free = {"temperature": 1.0, "ignore_eos": False, "seed": 7, "logit_bias": {MARK: -100}}
            assert (await server.complete(prompt, 60, **free))["token_ids"] == body["choices"][0]["token_ids"]
    assert found["on"] == found["off"]

"""Anthropic's API on served random models: by the anthropic package, and by counts of cached tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from blockwright.tests.api.anthropic.events import blocks, events
from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.system.client import Client
from blockwright.tests.system.client_checks import run_checks
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system
CHECKS = Path(__file__).parents[2] / "tests" / "compat" / "check_anthropic.py"
# a conversation that begins with "think" has its thinking opened by the prompt
OPENED = "{%- if messages[0].content == 'think' %}{{- '<think>\\n' }}{%- endif %}"
LEAST = 0.95  # share of a second turn's prompt that the prefix cache has
TOOL_TOKENS = 4000


def qwen(folder: Path, positions: int) -> Path:
    make_checkpoint(folder, max_position_embeddings=positions)
    (folder / "chat_template.jinja").write_text(QWEN3 + OPENED)
    return folder


@claim("The official anthropic client works unmodified: messages, streams, tools, thinking, errors", of="http-api")
async def test_the_anthropic_client(tmp_path: Path) -> None:
    async with serve({"m": qwen(tmp_path / "m", 4096)}) as server:
        assert await run_checks(CHECKS, server.url, "m") >= 40


async def post(server: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with server.session.post(f"{server.url}{path}", json=body) as answer:
        made: dict[str, Any] = await answer.json()
        assert answer.status == 200, made
    return made


def tool(index: int) -> dict[str, Any]:
    properties = {f"field_{i}": {"type": "string", "description": f"the field {i} of tool {index}"} for i in range(6)}
    schema = {"type": "object", "properties": properties}
    return {"name": f"tool_{index}", "description": f"does {index}", "input_schema": schema}


def turn(number: int, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """A turn as Claude Code sends it: a header that changes, and the mark of Anthropic's cache on the last block."""
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={number * 7919}"}
    *before, last = messages
    content = last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": last["content"]}]
    marked = {**last, "content": [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]}
    return {
        "model": "m", "max_tokens": 24, "temperature": 0,
        "system": [billing, {"type": "text", "text": "Be brief."}], "tools": tools, "messages": [*before, marked],
        "metadata": {"user_id": f"session {number}"},
    }  # fmt: skip


@claim(
    "The second turn over Messages, with tools of 4,000 tokens, finds 95 % of its prompt in the prefix cache",
    of="http-api",
)
async def test_the_second_turn_comes_from_the_cache(tmp_path: Path) -> None:
    async with serve({"m": qwen(tmp_path / "m", 16_384)}, memory=64 << 20) as server:
        tools: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What is in this folder?"}]
        bare = await post(server, "/v1/messages/count_tokens", turn(0, messages, []))
        counted = bare
        while counted["input_tokens"] - bare["input_tokens"] < TOOL_TOKENS:
            tools.append(tool(len(tools)))
            counted = await post(server, "/v1/messages/count_tokens", turn(0, messages, tools))
        first = await post(server, "/v1/messages", turn(1, messages, tools))
        assert first["usage"]["input_tokens"] == counted["input_tokens"]
        messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "And in the next one?"}]
        counted = await post(server, "/v1/messages/count_tokens", turn(2, messages, tools))
        usage = (await post(server, "/v1/messages", turn(2, messages, tools)))["usage"]
        read = usage["cache_read_input_tokens"]
        assert usage["input_tokens"] + read == counted["input_tokens"]
        assert read >= LEAST * counted["input_tokens"]
        assert usage["cache_creation_input_tokens"] == 0


@claim("A message survives kill -9 of its worker in the middle of its stream", of="faults")
async def test_kill_9_in_the_middle_of_a_message(replicas: Server) -> None:
    asked = {"max_tokens": 60, "temperature": 0, "messages": [{"role": "user", "content": "Count."}]}
    async with Client(replicas) as client, ClientSession(replicas.url) as session, asyncio.timeout(PATIENCE):
        await client.ready()
        async with session.post("/v1/messages", json=asked) as answer:
            calm = await answer.json()
        with slow(replicas):
            answer = await session.post("/v1/messages", json={**asked, "stream": True})
            begun = await answer.content.readuntil(b"text_delta")
            view = await client.request(answer.headers["request-id"])
            assert view is not None
            await client.kill(view["home"])
        found = events(begun + await answer.read())
        assert blocks(found[2:-2]) == calm["content"]
        assert found[-2]["delta"] == {"stop_reason": calm["stop_reason"], "stop_sequence": None}
        assert found[-2]["usage"]["output_tokens"] == calm["usage"]["output_tokens"]
        await client.ready()

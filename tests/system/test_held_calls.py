"""Calls under tool_choice auto on real servers: the same tokens and the same turn, whatever happens to a worker meanwhile.

Each model has the text that opens its calls as a special token. A bias makes it likely, so that random weights call tools.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from blockwright.tests.api.text.turn.turns import SOURCES, read
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve as serve_here
from blockwright.tests.equality.served import tight
from blockwright.tests.parts import some
from blockwright.tests.system.client import SAMPLED, Client
from blockwright.tests.system.conftest import FAULTY, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
MARK, END = 0, 2  # the tokens that open a call, and that end an answer
MARKS = {  # by kind of model: JSON in tags and in a list, at the start, by name, as XML, in framed turns, literals, Python
    "qwen": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "llama3": '<|python_tag|>{"name"',
    "ministral": "[TOOL_CALLS]",
    "coder": "<tool_call>",
    "harmony": " to=functions.",
    "gemma": "<|tool_call>call:",
    "lfm": "<|tool_call_start|>",
}
CLOSES = {"qwen": "</tool_call>", "coder": "</tool_call>", "lfm": "<|tool_call_end|>"}
DAILY = ("qwen", "mistral", "coder", "lfm")
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
SCHEMAS = {"weather": PLACE, "lamp": FLAG}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NEW = 100
WAYS = 7  # to ask


@dataclass
class Turn:
    """One choice of a chat, as far as it has come."""

    tokens: list[int] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.tokens += choice.get("token_ids") or []
        self.content += delta.get("content") or ""
        self.reasoning += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                self.calls.append([call["function"]["name"], ""])
            self.calls[call["index"]][1] += call["function"]["arguments"]
        self.finish, self.stop = choice["finish_reason"], choice.get("stop_reason")

    @classmethod
    def of(cls, choice: dict[str, Any]) -> Turn:
        message = choice["message"]
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
        parts = message["content"] or "", message.get("reasoning", "")
        return cls(choice["token_ids"], *parts, calls, choice["finish_reason"], choice["stop_reason"])


def marked(folder: Path, kind: str, first: Path) -> Path:
    """A model of a kind, whose tokenizer has the text that opens calls as a special token."""
    shutil.copytree(first, folder)
    (folder / "chat_template.jinja").write_text(SOURCES[kind][0])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text().replace("<unk>", json.dumps(MARKS[kind], ensure_ascii=False)[1:-1])
        (folder / name).write_text(text)
    return folder


def asked(kind: str, index: int) -> dict[str, Any]:
    """Request ``index`` of a kind: greedy, two choices beyond ends, sampled with drafts, cut at a call, or with one call."""
    base = {"model": kind, "messages": [{"role": "user", "content": f"go {index}"}], "tools": TOOLS, "max_tokens": NEW}
    base |= {"seed": index, "temperature": 1.0, "logit_bias": {str(MARK): 6.0}, "return_token_ids": True}
    ways: list[dict[str, Any]] = [
        {"temperature": 0, "logit_bias": {str(MARK): 9.0}, "ignore_eos": True},
        {"n": 2, "ignore_eos": True, "logit_bias": {str(MARK): 4.5}},
        {**SAMPLED, "draft": "prompt"},
        {"n": 2, "stop": ["unit", '"on"']},
        {"stop": [CLOSES.get(kind, "}")]},
        {"stop": [MARKS[kind]], "logit_bias": {str(MARK): 4.0}},
        {"parallel_tool_calls": False},
    ]
    return base | ways[index % WAYS]


LOAD = [(kind, index) for kind in DAILY for index in range(WAYS)]


class Chats(Client):
    """Chats whose turns grow by themselves."""

    def chat_stream(self, body: dict[str, Any], name: str) -> list[Turn]:
        turns = [Turn() for _ in range(body.get("n", 1))]
        self._tasks.append(asyncio.create_task(self._follow(body, name, turns), name=name))
        return turns

    async def _follow(self, body: dict[str, Any], name: str, turns: list[Turn]) -> None:
        headers = {"x-request-id": name}
        async with self._session.post("/v1/chat/completions", json={**body, "stream": True}, headers=headers) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    for choice in event["choices"]:
                        turns[choice["index"]].add(choice)

    async def undisturbed(self, load: Sequence[tuple[str, int]]) -> list[list[Turn]]:
        """The turns of a load, not streamed, computed anew."""

        async def one(kind: str, index: int) -> list[Turn]:
            status, answer = await self.chat({**asked(kind, index), "cache_salt": "undisturbed"})
            assert status == 200, answer
            return [Turn.of(choice) for choice in answer["choices"]]

        return await asyncio.gather(*(one(*which) for which in load))


def check(kind: str, folder: Path, turn: Turn) -> None:
    """Calls are by their schemas, the reason why the turn ended is right, and its tokens read again give the same turn."""
    whole = turn.finish != "length" and turn.stop is None
    for place, (name, arguments) in enumerate(turn.calls):
        if whole or place < len(turn.calls) - 1:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    if turn.finish == "tool_calls":
        for name, arguments in turn.calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert turn.finish in ("length", "stop", "tool_calls")
    assert turn.calls or turn.finish != "tool_calls"
    assert not (whole and turn.calls) or turn.finish == "tool_calls"
    if turn.stop is None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        text = tokenizer.decode([id for id in turn.tokens if id not in (1, END)], skip_special_tokens=False)
        again = read(kind, text, schemas=SCHEMAS)
        assert (again.content, again.reasoning, again.calls) == (turn.content, turn.reasoning, turn.calls)


def folders_of(root: Path, first: Path, kinds: Sequence[str]) -> dict[str, Path]:
    return {kind: marked(root / kind, kind, first) for kind in kinds}


@pytest.fixture(scope="module")
def first(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, first: Path) -> dict[str, Path]:
    return folders_of(tmp_path_factory.mktemp("held"), first, DAILY)


@pytest.fixture(scope="module")
def calling(first: Path, folders: dict[str, Path], pace: Path) -> Iterator[Server]:
    """Two workers with all these models. A test that kills one leaves when all are back."""
    apps = [word for kind, folder in folders.items() for word in ("--app", f"{kind}={folder}")]
    server = Server(first, module=FAULTY, pace=pace, chunk_size=64, arguments=apps)
    yield server.whole()
    server.stop()


@pytest.fixture(scope="module")
def calm(calling: Server, folders: dict[str, Path]) -> list[list[Turn]]:
    """The turns of the load when nothing happens; calls are in all forms, some are cut, and some stand beside texts."""

    async def made() -> list[list[Turn]]:
        async with Chats(calling) as client:
            await client.ready()
            return await client.undisturbed(LOAD)

    found = asyncio.run(made())
    for (kind, index), turns in zip(LOAD, found, strict=True):
        for turn in turns:
            check(kind, folders[kind], turn)
            assert len(turn.calls) <= 1 or index % WAYS != 6
            assert index % WAYS != 3 or turn.stop is None or turn.finish == "stop", "a call that was cut is none to make"
    for kind in DAILY:
        turns = [turn for (of, _), some_turns in zip(LOAD, found, strict=True) if of == kind for turn in some_turns]
        assert sum(len(turn.calls) for turn in turns) > 4, kind
        assert any(turn.stop and turn.calls for turn in turns), kind
    assert sum(bool(turn.content) for turns in found for turn in turns) > len(DAILY)
    assert {turn.finish for turns in found for turn in turns} == {"length", "stop", "tool_calls"}
    return found


def equal(found: list[list[Turn]], calm: list[list[Turn]]) -> None:
    for (kind, index), turns, before in zip(LOAD, found, calm, strict=True):
        assert turns == before, (kind, index)


def come(turns: list[list[Turn]], tokens: int) -> bool:
    return all(turn.finish or len(turn.tokens) >= tokens for some_turns in turns for turn in some_turns)


def inside_a_call(turns: list[list[Turn]]) -> bool:
    """Return whether some call is written at this moment."""
    for turn in (turn for some_turns in turns for turn in some_turns if turn.finish is None and turn.calls):
        try:
            json.loads(turn.calls[-1][1])
        except ValueError:
            return True
    return False


@claim(
    "With tool_choice auto, free text and calls are the same after kill -9 of a worker, in each form of calls", of="tools"
)
@pytest.mark.parametrize("at", some([2, 9, 21, 40], 9, 40))
async def test_kill_9_inside_of_calls(calling: Server, calm: list[list[Turn]], at: int) -> None:
    async with Chats(calling) as client:
        await client.ready()
        with slow(calling, at):
            found = [client.chat_stream(asked(kind, index), f"{at}-{kind}-{index}") for kind, index in LOAD]
            await until(lambda: come(found, at))
            assert at < 5 or inside_a_call(found)
            await client.kill("w0" if at % 2 else "w1")
        await client.finished()
        equal(found, calm)
        await client.ready()


@claim("With tool_choice auto, a request moves to another worker inside of a call", of="tools")
async def test_moves_inside_of_calls(calling: Server, calm: list[list[Turn]]) -> None:
    async with Chats(calling) as client:
        await client.ready()
        with slow(calling, 12):
            names = [f"move-{kind}-{index}" for kind, index in LOAD]
            found = [client.chat_stream(asked(*which), name) for which, name in zip(LOAD, names, strict=True)]
            await until(lambda: come(found, 12))
            assert inside_a_call(found)
            moved = 0
            for name, turns in zip(names, found, strict=True):
                if any(turn.finish is None for turn in turns):
                    status, _ = await client.move(name)
                    moved += status == 202
        await client.finished()
        equal(found, calm)
        assert moved > len(DAILY)


@claim("With tool_choice auto, free text and calls are the same after preemption", of="tools")
async def test_preempted_inside_of_calls(folders: dict[str, Path]) -> None:
    kind, folder = "qwen", folders["qwen"]
    load = [index for index in range(28) if index % WAYS in (0, 1, 2)]
    settings: dict[str, Any] = {"page_size": 16, "max_model_len": 1024, "prefix_cache": False}

    async def one(server: Any, index: int) -> list[Turn]:
        async with server.session.post(f"{server.url}/v1/chat/completions", json=asked(kind, index)) as answer:
            found = await answer.json()
            assert answer.status == 200, found
        return [Turn.of(choice) for choice in found["choices"]]

    async with serve_here({kind: folder}, **settings) as server:
        alone = [await one(server, index) for index in load]
    async with serve_here({kind: folder}, memory=tight(folder, 16, 1024) + (2 << 20), **settings) as server:
        together = await asyncio.gather(*map(partial(one, server), load))
        assert await server.counters("preemptions") > 0
    assert together == alone
    for turns in alone:
        for turn in turns:
            check(kind, folder, turn)


REST = sorted({*MARKS} - {*DAILY})


@pytest.mark.nightly
async def test_kill_9_in_the_other_forms(tmp_path: Path, first: Path, serve: Callable[..., Server]) -> None:
    folders = folders_of(tmp_path, first, REST)
    load = [(kind, index) for kind in REST for index in range(WAYS)]
    apps = [word for kind, folder in folders.items() for word in ("--app", f"{kind}={folder}")]
    server = serve(first, chunk_size=64, arguments=apps).whole()
    async with Chats(server) as client:
        await client.ready()
        calm = await client.undisturbed(load)
        for (kind, _), turns in zip(load, calm, strict=True):
            for turn in turns:
                check(kind, folders[kind], turn)
        for kind in REST:
            assert any(turn.calls for (of, _), turns in zip(load, calm, strict=True) if of == kind for turn in turns), kind
        for at in (4, 20):
            with slow(server, at):
                found = [client.chat_stream(asked(kind, index), f"{at}-{kind}-{index}") for kind, index in load]
                await until(partial(come, found, at))
                await client.kill("w0")
            await client.finished()
            assert found == calm
            await client.ready()
    server.stop()

"""Events of responses: a reference of their order, and the law that deltas join to the texts and items of the end."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import EOS, one_by_one, tokens_emitted, with_logprobs
from blockwright.tests.api.openai.responses.conftest import CALL, PATCH, WEATHER
from blockwright.tests.claims import claim

URL = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
FULL = f"<think>\nhm, é two\n</think>\n\nI ask 😀. {CALL}\n{CALL.replace('Bern', 'Rome')}"
CUSTOM = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\n\\"b\\" \\ud83d\\ude00 é\\u0041"}}\n</tool_call>'
TEXTS = {
    "plain": "Hello there",
    "nothing": "",
    "thinking alone": "<think>hm",
    "all": FULL,
    "custom": f"so {CUSTOM}",
    "broken call": 'so: <tool_call>\n{"name": 7}\n</tool_call> there',
    "text between calls": f"{CALL} and {CALL}",
}
_TEXT_OF = {"output_text": "text", "reasoning_text": "text", "reasoning_summary_text": "text"}
_TEXT_OF |= {"function_call_arguments": "arguments", "custom_tool_call_input": "input"}


def read(body: str) -> list[dict[str, Any]]:
    """The events of a stream, each checked by the client's own types."""
    found = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            continue
        name, data = block.split("\n")
        assert data.startswith("data: ")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_json(data.removeprefix("data: "), strict=True)
        found.append(event)
    return found


class Reference:
    """Rebuilds a response from its events, one item at a time, and fails on any that is out of order."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.part: dict[str, Any] | None = None
        self.text: str | None = None  # of what is open; None after its done event
        self.final: dict[str, Any] | None = None

    def feed(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        first = events[0]["response"]
        assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
        for event in events[2:]:
            assert self.final is None
            kind = event["type"].removeprefix("response.")
            if kind in ("completed", "incomplete", "failed"):
                self.final = event["response"]
                assert self.final["status"] == kind
                assert self.final["id"] == first["id"]
            elif kind == "error":
                assert events[-1]["type"] == "response.failed"
            else:
                self._within(kind, event)
        assert self.final is not None
        if self.final["status"] != "failed":
            assert self.open is None
            assert self.final["output"] == self.items
        return self.final

    def _within(self, kind: str, event: dict[str, Any]) -> None:
        what, _, step = kind.rpartition(".")
        if kind == "output_item.added":
            assert self.open is None
            assert event["output_index"] == len(self.items)
            self.open, self.part = event["item"], None
            self.text = ""
            assert self.open["status"] == "in_progress"
            assert not any(self.open.get(key) for key in ("content", "summary", "arguments", "input"))
            return
        assert self.open is not None
        assert event["output_index"] == len(self.items)
        if kind == "output_item.done":
            assert self.text is None
            item, done = self.open, event["item"]
            assert (item["type"], item["id"], item.get("call_id")) == (done["type"], done["id"], done.get("call_id"))
            parts = [*done.get("content", ()), *done.get("summary", ())]
            assert parts == ([self.part] if done["type"] in ("message", "reasoning") else [])
            for key in ("arguments", "input"):
                assert item.get(key) == done.get(key)
            self.items.append(done)
            self.open = None
            return
        assert event["item_id"] == self.open["id"]
        assert event.get("content_index", event.get("summary_index", 0)) == 0
        if what in ("content_part", "reasoning_summary_part"):
            assert (self.part is None) is (step == "added")
            if step == "done":
                assert self.text is None
                assert event["part"]["text"] == self.open["text"]
            self.part = event["part"]
        elif step == "delta":
            assert self.text is not None
            assert event["delta"]
            self.text += event["delta"]
        else:
            assert step == "done"
            key = _TEXT_OF[what]
            assert event[key] == self.text
            self.open[key], self.text = self.text, None


async def streamed(client: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = await client.post(URL, json={"input": "weather?", "stream": True, **fields})
    assert answer.status == 200, await answer.text()
    return read((await answer.read()).decode("ascii"))


def plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without the names that each answer has of its own."""
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


@claim("The events of a response come in the order of OpenAI's API, and their deltas join to its items", of="http-api")
@pytest.mark.parametrize("name", TEXTS)
async def test_deltas_join_to_the_items_for_every_split(responses: Any, codec: Any, name: str) -> None:
    tokens = [*codec.encode(TEXTS[name], special=False), EOS]
    client, port = await responses(TEXTS[name])
    tools = [WEATHER, PATCH]
    answer = await client.post(URL, json={"input": "weather?", "tools": tools})
    whole = await answer.text()
    Response.model_validate_json(whole, strict=True)
    expected = json.loads(whole)
    for seed in range(12):
        draw = random.Random(seed)
        cuts = sorted(draw.sample(range(1, len(tokens)), min(seed, len(tokens) - 1)))
        pieces = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
        news = [tokens_emitted(piece, finish="stop" if i == len(pieces) - 1 else "") for i, piece in enumerate(pieces)]
        port._script = lambda generation, news=news: news
        final = Reference().feed(await streamed(client, tools=tools, reasoning={"summary": (None, "auto")[seed % 2]}))
        if seed % 2 == 0:
            assert plain(final["output"]) == plain(expected["output"])
        assert final["usage"] == expected["usage"]
    port._script = lambda generation: one_by_one(tokens, "stop")
    final = Reference().feed(await streamed(client, tools=tools))
    assert plain(final["output"]) == plain(expected["output"])


async def test_the_parts_of_an_answer(responses: Any, codec: Any) -> None:
    client, port = await responses(FULL)
    asked = {"tools": [WEATHER], "include": ["reasoning.encrypted_content"]}
    answer = await (await client.post(URL, json={"input": "weather?", **asked})).json()
    thought, message, *calls = answer["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm, é two"}])
    assert (message["content"][0]["text"], message["role"]) == ("I ask 😀.", "assistant")
    assert [json.loads(call["arguments"]) for call in calls] == [{"place": "Bern"}, {"place": "Rome"}]
    assert len({call["call_id"] for call in calls}) == 2
    assert (answer["status"], answer["store"], answer["object"]) == ("completed", False, "response")
    tokens = len(codec.encode("<think>\nhm, é two\n</think>", special=False))
    usage = answer["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": tokens}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    # all of it given back is the conversation that the chat template knows
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"} for call in calls]
    history = [{"role": "user", "content": "weather?"}, *answer["output"], *results]
    await client.post(URL, json={"input": history, **asked})
    prompt = codec.decode(port.streams[-1].generation.prompt, special=True)
    assert f"<think>\nhm, é two\n</think>\n\nI ask 😀.\n{CALL}\n{CALL.replace('Bern', 'Rome')}<|im_end|>" in prompt
    assert prompt.count("<tool_response>\nrain\n</tool_response>") == 2
    shorn = [{key: value for key, value in item.items() if key != "content"} for item in history[1:2]]
    await client.post(URL, json={"input": [history[0], *shorn, *history[2:]], **asked})
    assert port.streams[-1].generation.prompt == port.streams[-2].generation.prompt  # from its sealed text


@pytest.mark.parametrize("text", ["Hello there, you", "<think>still", f"a {CALL}"[:-20], CUSTOM[:-30]])
async def test_an_answer_that_ends_by_length_is_incomplete(responses: Any, codec: Any, text: str) -> None:
    client, port = await responses("")
    tokens = codec.encode(text, special=False)
    port._script = lambda generation: one_by_one(tokens, "length")
    asked = {"tools": [WEATHER, PATCH], "max_output_tokens": len(tokens)}
    final = Reference().feed(await streamed(client, **asked))
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["completed_at"] is None
    assert [item["status"] for item in final["output"]][-1] == "incomplete"
    assert {item["status"] for item in final["output"][:-1]} <= {"completed"}
    whole = await (await client.post(URL, json={"input": "weather?", **asked})).json()
    assert plain(whole["output"]) == plain(final["output"])


async def test_a_call_is_whole_or_not_however_the_answer_ends(responses: Any, codec: Any) -> None:
    client, port = await responses("")
    for text, finish, status in (
        (CALL.removesuffix("\n</tool_call>"), "length", "completed"),
        (CUSTOM.removesuffix("}\n</tool_call>"), "length", "completed"),
        (CALL[:-20], "stop", "incomplete"),
    ):
        tokens = codec.encode(text, special=False)
        port._script = lambda generation, tokens=tokens, finish=finish: one_by_one(tokens, finish)
        final = Reference().feed(await streamed(client, tools=[WEATHER, PATCH]))
        assert [item["status"] for item in final["output"]] == [status]
        assert final["status"] == ("incomplete" if finish == "length" else "completed")


async def test_a_failure_after_the_beginning_ends_the_stream(responses: Any, codec: Any) -> None:
    """The client gets what was written and the reason, as when all workers are killed."""
    client, port = await responses("")
    tokens = codec.encode("Hello", special=False)
    gone = RequestRefused(Refusal.UNAVAILABLE, "no worker is left")
    port._script = lambda generation: [*one_by_one([*tokens, 5])[:-1], gone]
    events = await streamed(client)
    final = Reference().feed(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["code"], events[-2]["message"]) == ("unavailable", "no worker is left")
    assert final["error"] == {"code": "server_error", "message": "no worker is left"}
    assert final["output"][0]["content"][0]["text"] == "Hello"
    port._script = lambda generation: [gone]
    answer = await client.post(URL, json={"input": "a", "stream": True})
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "unavailable")  # nothing was sent


async def test_a_failure_behind_a_comment_has_a_beginning(responses: Any) -> None:
    client, port = await responses("", settings={"keep_alive": 0.01})
    gate = asyncio.Event()
    port._script = lambda generation: [gate, RequestRefused(Refusal.UNAVAILABLE, "no worker is left")]
    answer = await client.post(URL, json={"input": "a", "stream": True})
    assert (await answer.content.readline()).startswith(b": ")
    gate.set()
    body = (await answer.read()).decode()
    assert Reference().feed(read(body.partition("\n")[2]))["status"] == "failed"


async def test_a_client_that_leaves_cancels(responses: Any) -> None:
    client, port = await responses("")
    gate = asyncio.Event()
    port._script = lambda generation: [tokens_emitted([9]), gate]
    answer = await client.post(URL, json={"input": "a", "stream": True})
    stream = await port.waiting.get()
    answer.close()
    await stream.cancelled.wait()


async def test_logprobs_are_those_of_the_text(responses: Any, codec: Any) -> None:
    client, port = await responses("")
    text = "<think>\nhm\n</think>Hello"
    tokens = codec.encode(text, special=False)
    port._script = lambda generation: with_logprobs(tokens, 2)
    asked = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    events = await streamed(client, **asked)
    final = Reference().feed(events)
    part = final["output"][-1]["content"][0]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"] == "Hello"
    assert {len(one["top_logprobs"]) for one in part["logprobs"]} == {2}
    pieces = [one for event in events if event["type"].endswith("text.delta") for one in event.get("logprobs", ())]
    assert pieces == part["logprobs"]
    sampling = port.streams[-1].generation.sampling
    assert sampling.logprobs == 2


async def test_a_stream_has_the_logprob_of_the_end_token_too(responses: Any, codec: Any) -> None:
    client, port = await responses("")
    tokens = [*codec.encode("Hello", special=False), EOS]
    port._script = lambda generation: with_logprobs(tokens, 2)
    asked = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    events = await streamed(client, **asked)
    answer = await client.post("/v1/responses", json={"input": "hi", **asked})
    whole = (await answer.json())["output"][-1]["content"][0]["logprobs"]
    assert len(whole) == len(tokens)
    assert Reference().feed(events)["output"][-1]["content"][0]["logprobs"] == whole


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_has_the_logprobs_of_its_own_tokens(responses: Any, codec: Any, name: str) -> None:
    """Log-probabilities of thinking and of calls belong to no text, in whatever pieces the tokens come."""
    client, port = await responses("")
    tokens = [*codec.encode(TEXTS[name], special=False), EOS]
    asked = {"tools": [WEATHER, PATCH], "include": ["message.output_text.logprobs"]}
    found = []
    for seed in range(5):
        cuts = [] if seed == 4 else sorted(random.Random(seed).sample(range(1, len(tokens)), min(3 * seed, len(tokens) - 1)))
        pieces = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
        port._script = lambda generation, pieces=pieces: [
            tokens_emitted(piece, [TokenLogprob(-0.5, [])] * len(piece), "stop" if piece is pieces[-1] else "")
            for piece in pieces
        ]
        if seed == 4:
            whole = await (await client.post(URL, json={"input": "weather?", **asked})).json()
            found.append(whole["output"])
        else:
            found.append(Reference().feed(await streamed(client, **asked))["output"])
    assert all(plain(one) == plain(found[-1]) for one in found)
    texts = [item["content"][0] for item in found[-1] if item["type"] == "message"]
    for part in texts:
        joined = b"".join(bytes(one["bytes"]) for one in part["logprobs"]).decode().removesuffix("</s>")
        assert joined == part["text"] or joined.strip() == part["text"].strip()
    assert texts


@claim("Codex reads its whole list of events from a response", of="http-api")
async def test_the_events_that_codex_reads(responses: Any) -> None:
    """Its list: what ``codex-rs`` takes from a stream, by the types and members that it names."""
    client, _ = await responses(f"{FULL}\n{CUSTOM}")
    events = await streamed(
        client,
        instructions="You are a coding agent.",
        tools=[WEATHER, PATCH, {"type": "web_search"}, {"type": "local_shell"}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="a-b",
        text={"verbosity": "low"},
    )
    Reference().feed(events)
    kinds = {event["type"].removeprefix("response.") for event in events}
    assert kinds >= {
        *("created", "output_item.added", "output_item.done", "output_text.delta", "custom_tool_call_input.delta"),
        *("reasoning_summary_part.added", "reasoning_summary_text.delta", "completed"),
    }
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == [
        *("reasoning", "message", "function_call", "function_call", "custom_tool_call"),
    ]
    assert done[0]["summary"] == [{"type": "summary_text", "text": "hm, é two"}]
    assert isinstance(done[0]["encrypted_content"], str)
    assert done[2].keys() >= {"name", "arguments", "call_id"}
    assert done[4]["input"] == 'a\n"b" 😀 éA'
    usage = events[-1]["response"]["usage"]
    assert usage.keys() >= {"input_tokens", "output_tokens", "total_tokens"}
    assert "cached_tokens" in usage["input_tokens_details"]
    raw = await streamed(client, reasoning={"effort": "medium"})
    assert "response.reasoning_text.delta" in {event["type"] for event in raw}

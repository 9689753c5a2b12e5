"""``/v1/chat/completions``: templates, messages and chunks."""

import asyncio
from typing import Any

import pytest

from blockwright.tests.api.fake_port import EOS, events, make_folder, one_by_one, with_logprobs
from blockwright.tests.claims import claim

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


@claim("`/v1/completions` and `/v1/chat/completions` answer whole and streamed with usage", of="http-api")
async def test_a_whole_answer(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("the end"))
    answer = await client.post(URL, json={"model": "tiny", "messages": HELLO})
    body = await answer.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-gw0-")
    message = {"role": "assistant", "content": "the end", "refusal": None}
    assert body["choices"] == [
        {"index": 0, "message": message, "finish_reason": "length", "stop_reason": None, "logprobs": None}
    ]
    prompt = codec.encode("<s><user>hi\n<assistant>", special=False)
    generation = port.streams[0].generation
    assert generation.prompt == prompt
    assert generation.max_tokens == 64 - len(prompt)  # all that fit
    assert body["usage"]["prompt_tokens"] == len(prompt)


@claim("`/v1/completions` and `/v1/chat/completions` answer whole and streamed with usage", of="http-api")
async def test_chunks(serve: Any, codec: Any) -> None:
    tokens = [*codec.encode("a🙂", special=False), EOS]
    client, _ = await serve(lambda g: one_by_one(tokens, "stop"))
    answer = await client.post(URL, json={"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}})
    chunks = events(await answer.read())
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "🙂"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(tokens)
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "tiny", "chat.completion.chunk")
    }


async def test_three_choices_in_one_stream(serve: Any, codec: Any) -> None:
    texts = ["one", "two two", "three"]
    gate = asyncio.Event()

    def script(generation: Any) -> list[Any]:
        choice = generation.sampling.choice
        steps: list[Any] = one_by_one(codec.encode(texts[choice], special=False))
        return [steps[0], gate, *steps[1:]] if choice == 0 else steps

    client, port = await serve(script)
    asked = asyncio.create_task(client.post(URL, json={"messages": HELLO, "stream": True, "n": 3}))
    await port.waiting.get()
    gate.set()
    joined: dict[int, str] = {}
    order: list[int] = []
    for chunk in events(await (await asked).read()):
        choice = chunk["choices"][0]
        assert choice["index"] in joined or choice["delta"]["role"] == "assistant"
        order.append(choice["index"])
        joined[choice["index"]] = joined.get(choice["index"], "") + choice["delta"].get("content", "")
    assert joined == dict(enumerate(texts))
    assert order != sorted(order)  # they come as they are made, not one after the other


async def test_continuous_usage_counts_up(serve: Any, say: Any) -> None:
    client, _ = await serve(say("abc"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await client.post(URL, json={"messages": HELLO, "stream": True, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(await answer.read())]
    assert counts == [1, 1, 2, 3, 3, 3]  # role and first, second, third and end, the extra one


async def test_token_ids_and_logprobs_in_chunks(serve: Any, codec: Any) -> None:
    tokens = codec.encode("é", special=False)
    client, _ = await serve(lambda g: with_logprobs(tokens, g.sampling.logprobs))
    fields = {"messages": HELLO, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    whole = await (await client.post(URL, json=fields)).json()
    chunks = events(await (await client.post(URL, json={**fields, "stream": True})).read())
    content = whole["choices"][0]["logprobs"]["content"]
    assert [(c["token"], c["bytes"], c["logprob"]) for c in content] == [("\\xc3", [0xC3], -0.5), ("\\xa9", [0xA9], -0.5)]
    assert [len(c["top_logprobs"]) for c in content] == [1, 1]
    streamed = [c["choices"][0] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for chunk in streamed for entry in chunk["logprobs"]["content"]] == content
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"] == tokens
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]


async def test_no_template_says_so(serve: Any, tmp_path: Any) -> None:
    folder = make_folder(tmp_path / "plain")
    (folder / "tokenizer_config.json").write_text("{}")
    client, _ = await serve(folder=folder)
    answer = await client.post(URL, json={"messages": HELLO})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, "no_chat_template")
    assert "chat_template.jinja" in error["message"]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content.x }}", "the chat template refuses"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "does not compile"),
    ],
)
async def test_templates_that_fail(serve: Any, tmp_path: Any, template: str, says: str) -> None:
    folder = make_folder(tmp_path / "broken")
    (folder / "chat_template.jinja").write_text(template)
    client, _ = await serve(folder=folder)
    answer = await client.post(URL, json={"messages": HELLO})
    assert answer.status == 400
    assert says in (await answer.json())["error"]["message"]


async def test_a_tokenizer_that_is_missing(serve: Any, tmp_path: Any) -> None:
    folder = make_folder(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    client, _ = await serve(folder=folder)
    answer = await client.post(URL, json={"messages": HELLO})
    assert answer.status == 400
    assert "has no tokenizer.json" in (await answer.json())["error"]["message"]
    answer = await client.post("/v1/completions", json={"prompt": [5], "stop": "a"})  # its answer has no text to look in
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, "stop")

"""``/v1/completions`` over scripts of tokens."""

import asyncio
import io
import json
from typing import Any

import pytest

from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import EOS, MAX_LENGTH, events, make_folder, one_by_one, tokens_emitted, with_logprobs
from blockwright.tests.claims import claim

URL = "/v1/completions"
FRESH = {  # nothing of the prompt was cached, nothing of the answer predicted
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
}


@claim("`/v1/completions` and `/v1/chat/completions` answer whole and streamed with usage", of="http-api")
async def test_a_whole_answer(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("the end"))
    answer = await client.post(URL, json={"model": "tiny", "prompt": "once", "max_tokens": 9})
    body = await answer.json()
    assert answer.status == 200
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-gw0-")
    assert body["choices"] == [
        {"index": 0, "text": "the end", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    prompt, tokens = (len(codec.encode(text, special=False)) for text in ("once", "the end"))
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens, **FRESH}
    generation = port.streams[0].generation
    assert generation.id == body["id"]
    assert (generation.prompt, generation.max_tokens) == (codec.encode("once", special=True), 9)
    assert generation.stop_tokens == [EOS]


async def test_sampling_reaches_the_gateway(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 42,
    }
    await client.post(URL, json={"prompt": "a", **fields, "ignore_eos": True, "stop": ["q", "z"], "cache_salt": "s"})
    await client.post(URL, json={"prompt": "a"})
    chosen, default = port.streams[0].generation, port.streams[1].generation
    assert {name: getattr(chosen.sampling, name) for name in fields} == fields
    assert (chosen.stop_tokens, chosen.stop_strings, chosen.salt) == ([], 2, b"s")
    assert (default.sampling.temperature, default.sampling.top_k, default.max_tokens) == (1.0, 0, 16)


async def test_defaults_of_the_checkpoint(serve: Any, say: Any, tmp_path: Any) -> None:
    from blockwright.tests.api.fake_port import make_folder

    folder = make_folder(tmp_path / "tuned")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.8, "top_k": 5, "eos_token_id": [2, 7]}')
    client, port = await serve(say("x"), folder=folder)
    await client.post(URL, json={"prompt": "a", "top_k": 0})
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    client, greedy = await serve(say("x"), folder=folder)
    await client.post(URL, json={"prompt": "a"})
    generation = port.streams[0].generation
    assert (generation.sampling.temperature, generation.sampling.top_p, generation.sampling.top_k) == (0.6, 0.8, 0)
    assert generation.stop_tokens == [2, 7]
    assert greedy.streams[0].generation.sampling.temperature == 0


@claim("Several choices, log-probabilities, echo and all forms of prompts are served as documented", of="http-api")
async def test_prompts_and_choices_in_order(serve: Any, codec: Any) -> None:
    client, port = await serve(lambda g: one_by_one([g.prompt[-1]] * (1 + g.sampling.choice)))
    answer = await client.post(URL, json={"prompt": [[10], [11]], "n": 2, "max_tokens": 2, "seed": 5})
    body = await answer.json()
    first, second = codec.decode([10]), codec.decode([11])
    assert [c["text"] for c in body["choices"]] == [first, first * 2, second, second * 2]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8, **FRESH}
    ids = [stream.generation.id for stream in port.streams]
    assert ids == [body["id"], *(f"{body['id']}/{i}" for i in (1, 2, 3))]
    assert {stream.generation.sampling.seed for stream in port.streams} == {5}


@claim("Stop strings are found over token borders and never shown half", of="http-api")
async def test_a_stop_string_over_token_borders(serve: Any, say: Any) -> None:
    client, port = await serve(say("one two STOP three"))
    for stream in (False, True):
        answer = await client.post(URL, json={"prompt": "a", "stop": ["STOP", "never"], "stream": stream})
        if stream:
            chunks = [event["choices"][0] for event in events(await answer.read())]
            text, last = "".join(chunk["text"] for chunk in chunks), chunks[-1]
        else:
            last = (await answer.json())["choices"][0]
            text = last["text"]
        assert (text, last["finish_reason"], last["stop_reason"]) == ("one two ", "stop", "STOP")
    assert all(stream.stopped and not stream.cancelled.is_set() for stream in port.streams)


async def test_a_stop_string_that_never_completes_is_not_lost(serve: Any, say: Any) -> None:
    client, _ = await serve(say("nearly ST"))
    answer = await client.post(URL, json={"prompt": "a", "stop": "STOP"})
    assert (await answer.json())["choices"][0]["text"] == "nearly ST"


async def test_tokens_behind_a_stop_string_do_not_count(serve: Any, codec: Any) -> None:
    tokens = codec.encode("ab!cd", special=False)
    client, _ = await serve(lambda g: [tokens_emitted(tokens, finish="length")])
    answer = await client.post(URL, json={"prompt": "a", "stop": "!", "return_token_ids": True})
    body = await answer.json()
    assert body["choices"][0]["token_ids"] == tokens[:3]
    assert body["usage"]["completion_tokens"] == 3


async def test_the_end_token_is_counted_but_not_shown(serve: Any, codec: Any) -> None:
    tokens = [*codec.encode("hi", special=False), EOS]
    client, _ = await serve(lambda g: one_by_one(tokens, "stop"))
    for extra in ({}, {"stop": "zz"}):
        answer = await client.post(URL, json={"prompt": "a", "return_token_ids": True, **extra})
        choice = (await answer.json())["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hi", "stop", None)
        assert choice["token_ids"] == tokens
        assert choice["prompt_token_ids"] == codec.encode("a", special=True)


@claim("Several choices, log-probabilities, echo and all forms of prompts are served as documented", of="http-api")
async def test_logprobs(serve: Any, codec: Any) -> None:
    tokens = codec.encode("a🙂b", special=False)
    client, port = await serve(lambda g: with_logprobs(tokens, max(0, g.sampling.logprobs)))
    answer = await client.post(URL, json={"prompt": "a", "logprobs": 2})
    logprobs = (await answer.json())["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99", "bytes:\\x82", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert list(logprobs["top_logprobs"][0].values()) == [-1.0, -2.0, -0.5]  # the chosen token is always there
    answer = await client.post(URL, json={"prompt": "a", "logprobs": 0})
    assert (await answer.json())["choices"][0]["logprobs"]["top_logprobs"][0] == {"a": -0.5}
    assert [stream.generation.sampling.logprobs for stream in port.streams] == [2, 0]


async def test_streamed_logprobs_and_ids_join_to_the_whole(serve: Any, codec: Any) -> None:
    tokens = codec.encode("a🙂STb", special=False)
    client, _ = await serve(lambda g: with_logprobs(tokens, 1))
    fields = {"prompt": "a", "logprobs": 1, "return_token_ids": True, "stop": "STOP"}
    whole = (await (await client.post(URL, json=fields)).json())["choices"][0]
    chunks = [e["choices"][0] for e in events(await (await client.post(URL, json={**fields, "stream": True})).read())]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "a🙂STb"
    assert [t for chunk in chunks for t in chunk["token_ids"]] == whole["token_ids"] == tokens
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for chunk in chunks for x in chunk["logprobs"][name]] == whole["logprobs"][name]
    assert ["prompt_token_ids" in chunk for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        (
            {"prompt": [5] * MAX_LENGTH},
            "context_length_exceeded",
            f"holds {MAX_LENGTH} tokens, but the prompt has {MAX_LENGTH}",
        ),
        ({"prompt": [5] * 60, "max_tokens": 5}, "context_length_exceeded", "60 and 5 new tokens"),
        ({"prompt": [5, 269]}, "invalid_value", "token id 269 is not in the vocabulary; give ids from 0 to 268"),
        ({"prompt": [-1]}, "invalid_value", "token id -1"),
        ({"prompt": ""}, "invalid_value", "no tokens"),
    ],
)
async def test_what_can_never_fit(serve: Any, fields: Any, code: str, says: str) -> None:
    client, port = await serve()
    answer = await client.post(URL, json=fields)
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, code)
    assert says in error["message"]
    assert port.streams == []


async def test_the_whole_context_can_be_used(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    await client.post(URL, json={"prompt": [5] * 60, "max_tokens": 4})
    await client.post(URL, json={"prompt": [5] * 60})
    assert [stream.generation.max_tokens for stream in port.streams] == [4, 4]


async def test_one_choice_fails_and_all_end(serve: Any) -> None:
    never = asyncio.Event()
    script = {0: [never], 1: [RequestRefused(Refusal.POISON, "this request always kills its worker")]}
    client, port = await serve(lambda g: script[g.sampling.choice])
    answer = await client.post(URL, json={"prompt": "a", "n": 2})
    error = (await answer.json())["error"]
    assert (answer.status, error["type"], error["code"]) == (500, "server_error", "request_kills_workers")
    assert answer.headers["x-should-retry"] == "false"
    assert all(stream.cancelled.is_set() for stream in port.streams)


async def test_a_refused_choice_starts_none(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "draining", 2.5)
    answer = await client.post(URL, json={"prompt": "a", "n": 3})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "3")
    assert (await answer.json())["error"] == {
        "message": "draining",
        "type": "server_error",
        "param": None,
        "code": "unavailable",
    }


async def test_a_stream_that_ends_without_a_reason_is_an_error(serve: Any) -> None:
    client, _ = await serve(lambda g: [tokens_emitted([5])])
    answer = await client.post(URL, json={"prompt": "a"})
    assert answer.status == 500


async def test_long_prompts_are_tokenized_on_a_thread(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"))
    answer = await client.post(URL, data=io.BytesIO(json.dumps({"prompt": "a" * (300_000)}).encode()))
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert str(300_000) in error["message"]


@claim("A checkpoint without a tokenizer is served with token ids", of="checkpoints")
async def test_token_ids_are_served_without_a_tokenizer(serve: Any, say: Any, tmp_path: Any) -> None:
    folder = make_folder(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    client, _ = await serve(say("abc"), folder=folder)
    answer = await client.post(URL, json={"prompt": [3, 4], "max_tokens": 9, "return_token_ids": True})
    assert answer.status == 200
    choice = (await answer.json())["choices"][0]
    assert choice["text"] == ""
    assert len(choice["token_ids"]) > 0
    answer = await client.post(URL, json={"prompt": "text", "max_tokens": 9})
    assert answer.status == 400
    assert "prompts are token ids" in (await answer.json())["error"]["message"]


async def test_limits_and_more_of_the_checkpoint(serve: Any, say: Any, tmp_path: Any) -> None:
    folder = make_folder(tmp_path / "tuned")
    values = {
        "min_p": 0.2,
        "min_new_tokens": 2,
        "min_length": 9,
        "max_length": 12,
        "stop_strings": ["x"],
        "suppress_tokens": [9],
    }
    (folder / "generation_config.json").write_text(json.dumps(values))
    client, port = await serve(say("the"), folder=folder)

    async def asked(**fields: Any) -> Any:
        answer = await client.post(URL, json={"prompt": [5, 6, 7], **fields})
        assert answer.status == 200, await answer.text()
        return port.streams[-1].generation

    own = await asked()
    assert (own.max_tokens, own.stop_strings, own.sampling.min_p) == (9, 1, 0.2)
    assert (own.sampling.rules.min_tokens, own.sampling.rules.ends, own.sampling.rules.barred) == (2, [EOS], [[9]])
    other = await asked(max_tokens=30, min_tokens=0, min_p=0, ignore_eos=True, top_p=0, stop=["a", "x"])
    assert (other.max_tokens, other.stop_strings) == (30, 2)
    assert (other.sampling.min_p, other.sampling.top_p, other.sampling.rules.min_tokens) == (0, 0, 0)
    assert (await asked(prompt=[5] * 20)).max_tokens == 16, "a prompt that is longer is not limited by max_length"
    assert (await asked(prompt=[[5] * 3, [5] * 8])).sampling.rules.min_tokens == 2
    (folder / "generation_config.json").write_text('{"max_new_tokens": 7, "max_length": 5}')
    client, port = await serve(say("the"), folder=folder)
    assert (await asked()).max_tokens == 7
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    await client.post("/v1/chat/completions", json=chat)
    assert port.streams[-1].generation.max_tokens == 7

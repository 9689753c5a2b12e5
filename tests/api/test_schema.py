"""Bodies: every refusal names the field, what was given and what to give."""

from typing import Any

import pytest

from blockwright.actors.gateway.port import GatewayError
from blockwright.api.openai_schema import parse_chat, parse_completion, parse_json

HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> Any:
    return parse_completion({"prompt": "x", **fields}, "warn")


def chat(**fields: Any) -> Any:
    return parse_chat({"messages": HELLO, **fields}, "warn")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"seed": 1 << 64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": "\ud800"}, "stop"),
        ({"stop": "a" * 1025}, "stop"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"model": 3}, "model"),
        ({"cache_salt": 3}, "cache_salt"),
    ],
)
def test_shared_fields_are_checked(fields: dict[str, Any], param: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(GatewayError) as caught:
            parse(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert param in caught.value.message or "stop string" in caught.value.message


@pytest.mark.parametrize(
    "prompt", [None, 3, {}, [], [[]], [1, "a"], ["a", 1], [True], [[1], []], [[1.0]], [None], "\ud800", ["a", "\udfff"]]
)
def test_prompts_are_checked(prompt: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        completion(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_the_four_forms_of_prompts() -> None:
    assert completion(prompt="a").prompts == ["a"]
    assert completion(prompt=["a", "b"]).prompts == ["a", "b"]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]]
    assert completion(prompt=[[1], [2, 3]]).prompts == [[1], [2, 3]]


def test_a_missing_prompt_and_too_many_choices() -> None:
    with pytest.raises(GatewayError, match="prompt is missing"):
        parse_completion({}, "warn")
    with pytest.raises(GatewayError, match="over the limit of 1024"):
        completion(prompt=["a"] * 9, n=128)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_messages_are_checked(messages: Any, param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        chat(messages=messages)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_messages_become_plain_texts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = chat(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": parts, "name": "ann"}])
    assert body.messages == [{"role": "system", "content": "d"}, {"role": "user", "content": "one\ntwo", "name": "ann"}]


def test_logprobs_in_both_forms() -> None:
    assert [completion().options.logprobs, completion(logprobs=0).options.logprobs] == [-1, 0]
    assert chat(logprobs=True, top_logprobs=5).options.logprobs == 5
    assert [chat(logprobs=True).options.logprobs, chat(logprobs=False).options.logprobs] == [0, -1]
    for parse, fields in (
        (completion, {"logprobs": True}),
        (completion, {"logprobs": 21}),
        (chat, {"top_logprobs": 2}),
        (chat, {"logprobs": 1}),
    ):
        with pytest.raises(GatewayError):
            parse(**fields)


def test_defaults_and_synonyms() -> None:
    options = completion(top_k=-1, n=None, max_tokens=7.0, seed=-1, temperature=None).options
    assert (options.top_k, options.n, options.max_tokens, options.seed) == (0, 1, 7, (1 << 64) - 1)
    assert options.temperature is None
    assert chat(max_completion_tokens=3, max_tokens=9).options.max_tokens == 3


def test_a_missing_seed_is_drawn() -> None:
    seeds = {completion().options.seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize(
    ("name", "harmful", "neutral"),
    [
        ("logit_bias", {"5": 1}, {}),
        ("min_p", 0.1, 0.0),
        ("tools", [{}], []),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("suffix", "x", ""),
        ("echo", True, False),
        ("best_of", 2, 1),
        ("min_tokens", 3, 0),
        ("guided_json", {}, None),
        ("priority", 1, 0),
        ("skip_special_tokens", False, True),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(name: str, harmful: Any, neutral: Any) -> None:
    with pytest.raises(GatewayError, match=f"^{name} .*not supported") as caught:
        completion(**{name: harmful})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert completion(**{name: neutral}).options.ignored == ()


def test_best_of_as_many_as_n_is_no_choice() -> None:
    assert completion(best_of=3, n=3).options.n == 3


def test_harmless_and_unknown_fields() -> None:
    assert completion(user="ann", metadata={}, store=True).options.ignored == ()
    assert completion(wibble=1, wobble=2).options.ignored == ("wibble", "wobble")
    with pytest.raises(GatewayError, match="'wibble'") as caught:
        parse_completion({"prompt": "x", "wibble": 1}, "reject")
    assert caught.value.code == "unknown_parameter"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b"[" * 100000])
def test_bodies_that_are_no_objects(raw: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")

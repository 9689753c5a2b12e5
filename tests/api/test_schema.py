"""Bodies: every refusal names the field, what was given and what to give."""

from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from blockwright.api.errors import ApiError
from blockwright.api.openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS, parse_chat, parse_completion, parse_json
from blockwright.api.openai.field_types import object_schema
from blockwright.tests.claims import claim

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
        ({"top_p": -0.1}, "top_p"),
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
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"model": 3}, "model"),
        ({"cache_salt": 3}, "cache_salt"),
    ],
)
def test_shared_fields_are_checked(fields: dict[str, Any], param: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError) as caught:
            parse(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert param in caught.value.message or "stop string" in caught.value.message


@pytest.mark.parametrize(
    "prompt", [None, 3, {}, [], [[]], [1, "a"], ["a", 1], [True], [[1], []], [[1.0]], [None], "\ud800", ["a", "\udfff"]]
)
def test_prompts_are_checked(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


@claim("Several choices, log-probabilities, echo and all forms of prompts are served as documented", of="http-api")
def test_the_four_forms_of_prompts() -> None:
    assert completion(prompt="a").prompts == ["a"]
    assert completion(prompt=["a", "b"]).prompts == ["a", "b"]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]]
    assert completion(prompt=[[1], [2, 3]]).prompts == [[1], [2, 3]]


def test_a_missing_prompt_and_too_many_choices() -> None:
    with pytest.raises(ApiError, match="prompt is missing"):
        parse_completion({}, "warn")
    with pytest.raises(ApiError, match="over the limit of 1024"):
        completion(prompt=["a"] * 9, n=128)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "tool_call_id": "a"}], "messages[0].tool_call_id"),
        ([{"role": "", "content": "x"}], "messages[0].role"),
        ([{"role": "x" * 65, "content": "x"}], "messages[0].role"),
        ([{"role": "\ud800", "content": "x"}], "messages[0].role"),
        ([{"role": "assistant", "content": "x", "reasoning_content": 3}], "messages[0].reasoning_content"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "content": "x", "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
    ],
)
def test_messages_are_checked(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(messages=messages)
    assert (caught.value.status, caught.value.param) == (400, param)


@claim("Tool messages in a history are rendered by the chat template", of="http-api")
def test_a_history_with_tools_is_taken_as_templates_want_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body = chat(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    )
    assert body.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call | {"function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    assert body.options.ignored == ()
    broken = call | {"function": {"name": "add", "arguments": "[1"}}
    with pytest.raises(ApiError, match="give a JSON object, as a string"):
        chat(messages=[{"role": "assistant", "tool_calls": [broken]}])


@pytest.mark.parametrize("unknown", ["warn", "reject"])
def test_fields_that_agents_send_by_default_are_taken_and_reported(unknown: str) -> None:
    options = parse_chat({"messages": HELLO, "reasoning_effort": "low", "verbosity": "high"}, unknown).options
    assert (options.ignored, options.reasoning_effort) == (("verbosity",), "low")  # the model's template decides
    quiet = {"reasoning_effort": "none", "verbosity": "medium", "parallel_tool_calls": False, "store": True}
    assert parse_chat({"messages": HELLO, **quiet}, unknown).options.ignored == ()
    with pytest.raises(ApiError, match="reasoning_effort is 'much'"):
        parse_chat({"messages": HELLO, "reasoning_effort": "much"}, unknown)


def test_messages_go_to_the_template_as_they_were_sent() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = chat(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": parts, "name": "ann"}])
    assert body.messages == [{"role": "developer", "content": "d"}, {"role": "user", "content": parts, "name": "ann"}]


def test_what_an_assistant_thought_goes_to_the_template() -> None:
    said = {"role": "assistant", "content": "a"}
    body = chat(
        messages=[{**said, "reasoning_content": "t"}, {**said, "reasoning": "t"}, {"role": "ipython", "content": "x"}]
    )
    assert body.messages[:2] == [
        {**said, "reasoning_content": "t"},
        {**said, "reasoning_content": "t", "reasoning": "t"},
    ]
    assert body.options.ignored == ()
    assert chat(messages=[{"role": "user", "content": "a", "reasoning": "t"}]).options.ignored == ("messages[0].reasoning",)


def test_logprobs_in_both_forms() -> None:
    assert [completion().options.scored, completion(logprobs=0).options.scored] == [-1, 0]
    assert chat(logprobs=True, top_logprobs=5).options.scored == 5
    assert [chat(logprobs=True).options.scored, chat(logprobs=False).options.scored] == [0, -1]
    for parse, fields in (
        (completion, {"logprobs": True}),
        (completion, {"logprobs": 21}),
        (chat, {"top_logprobs": 2}),
        (chat, {"logprobs": 1}),
    ):
        with pytest.raises(ApiError):
            parse(**fields)


def test_defaults_and_synonyms() -> None:
    options = completion(top_k=-1, n=None, max_tokens=7.0, seed=-1, temperature=None).options
    assert (options.top_k, options.n, options.limit, options.seed) == (0, 1, 7, (1 << 64) - 1)
    assert options.temperature is None
    assert chat(max_completion_tokens=3, max_tokens=9).options.limit == 3


@claim("Fields that would change the answer and are not supported are refused by name", of="http-api")
@pytest.mark.parametrize(
    ("name", "harmful", "neutral"),
    [
        ("functions", [{}], []),
        ("function_call", "auto", "none"),
        ("guided_decoding_backend", "x", None),
        ("guided_something_new", True, None),
        ("use_beam_search", True, False),
        ("logits_processors", ["x"], []),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(name: str, harmful: Any, neutral: Any) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError, match=f"^{name} .*not supported") as caught:
            parse(**{name: harmful})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
        assert parse(**{name: neutral}).options.ignored in ((), (name,))


def test_suffix_and_echo_are_refused_where_they_are_not_served() -> None:
    for parse, name, value in ((completion, "suffix", "x"), (chat, "echo", True)):
        with pytest.raises(ApiError, match=f"^{name} .*not supported"):
            parse(**{name: value})
    assert completion(suffix="").options.echo is False
    assert completion(echo=True).options.echo is True


def test_best_of_is_the_number_of_choices() -> None:
    assert completion(best_of=3, n=3).options.n == 3
    for fields in ({"best_of": 3}, {"best_of": 2, "n": 3}):
        with pytest.raises(ApiError, match=r"best_of is .* every choice is returned") as caught:
            completion(**fields)
        assert caught.value.param == "best_of"


def test_nothing_but_an_echo() -> None:
    assert completion(echo=True, max_tokens=0).options.limit == 0
    with pytest.raises(ApiError, match="max_tokens is 0 without echo"):
        completion(max_tokens=0)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"min_p": 1.1}, "min_p", "from 0 to 1"),
        ({"min_tokens": -1}, "min_tokens", "from 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", r"more than max_tokens \(4\)"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "from -100 to 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "give token ids as keys"),
        ({"logit_bias": {"-5": 1}}, "logit_bias", "give token ids as keys"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024"),
        ({"logit_bias": [5]}, "logit_bias", "give an object"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "give 1 to"),
        ({"allowed_token_ids": ["5"]}, "allowed_token_ids", "list of token ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids", "list of token ids"),
        ({"bad_words": "word"}, "bad_words", "give a list of strings"),
        ({"bad_words": [""]}, "bad_words", "give 1 to 1024"),
        ({"bad_words": ["x"] * 257}, "bad_words", "at most 256"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "from -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "cannot be streamed"),
        ({"service_tier": "first"}, "service_tier", "one of auto, default, flex"),
        ({"service_tier": ["auto"]}, "service_tier", "one of auto, default, flex"),
        ({"priority": 1.5}, "priority", "give an integer"),
        ({"cache_salt": "s" * 1025}, "cache_salt", "1025 characters; give at most 1024"),
        ({"request_id": "r" * 129}, "request_id", "at most 128"),
        ({"metadata": "x"}, "metadata", "give an object"),
        ({"skip_special_tokens": 0}, "skip_special_tokens", "true or false"),
        ({"n": 129}, "n", "from 1 to 128"),
    ],
)
def test_values_out_of_bounds(fields: dict[str, Any], param: str, says: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError, match=says) as caught:
            parse(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_fields_of_the_template() -> None:
    template = chat(add_generation_prompt=False, continue_final_message=True, chat_template_kwargs={"a": 1}).template
    assert (template.add_generation_prompt, template.continue_final_message, template.chat_template_kwargs) == (
        False,
        True,
        {"a": 1},
    )
    with pytest.raises(ApiError, match="both true"):
        chat(continue_final_message=True)
    with pytest.raises(ApiError, match="not a variable"):
        chat(chat_template_kwargs={"messages": []})


@claim("Every field of a request is in the OpenAPI document with a schema that the server accepts", of="http-api")
def test_every_field_has_a_schema_that_takes_what_the_parser_takes() -> None:
    """The neutral and typical values of each field are valid by its schema, null too."""
    samples: dict[str, Any] = {
        "temperature": 0.5, "top_k": -1, "stop": ["a"], "logit_bias": {"5": 1.5}, "allowed_token_ids": [1], "prompt": [[1]],
        "messages": HELLO, "stream_options": {"include_usage": True, "include_obfuscation": False}, "tools": [], "n": 2,
        "service_tier": "flex", "metadata": {"a": "b"}, "stream": True, "response_format": {"type": "text"},
    }  # fmt: skip
    for fields in (COMPLETION_FIELDS, CHAT_FIELDS):
        whole = object_schema(fields)
        Draft202012Validator.check_schema(whole)
        for field in fields:
            if field.name in samples:
                jsonschema.validate(samples[field.name], field.schema())
            if not field.required:
                jsonschema.validate(None, field.schema())
    for value, name in ((-0.1, "temperature"), ("x", "service_tier"), ({"x": 1}, "logit_bias"), ([], "allowed_token_ids")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, {f.name: f for f in CHAT_FIELDS}[name].schema())


@claim("Harmless unknown fields are accepted and listed in a header", of="http-api")
def test_harmless_and_unknown_fields() -> None:
    assert completion(user="ann", metadata={}, store=True).options.ignored == ()
    assert completion(wibble=1, wobble=2).options.ignored == ("wibble", "wobble")
    assert completion(stream=True, stream_options={"wibble": 1}).options.ignored == ("stream_options.wibble",)
    with pytest.raises(ApiError, match="'wibble'") as caught:
        parse_completion({"prompt": "x", "wibble": 1}, "reject")
    assert caught.value.code == "unknown_parameter"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b"[" * 100000])
def test_bodies_that_are_no_objects(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")

"""Fields of other servers: what would choose or shape the answer is refused, never silently ignored."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS, parse_chat, parse_completion
from blockwright.api.openai.foreign_fields import GENERATING
from blockwright.tests.claims import claim

HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> Any:
    return parse_completion({"prompt": "x", **fields}, "warn")


def chat(**fields: Any) -> Any:
    return parse_chat({"messages": HELLO, **fields}, "warn")


@claim("Misspelt fields and fields of other servers are refused with the right name", of="http-api")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("adapter_id", "dates", "an adapter is a model here: send model = 'dates'"),
        ("lora", [{"id": 0, "scale": 1}], "an adapter is a model here: send model = its name"),
        ("lora_request", {"lora_name": "x"}, "an adapter is a model here"),
        ("lora_something_new", 1, "an adapter is a model here"),
        ("adapterId", "dates", "send model = 'dates'"),
        ("grammar", "root ::= x", "response_format and structured_outputs constrain an answer"),
        ("json_schema", {}, "response_format and structured_outputs constrain an answer"),
        ("format", "json", "response_format and structured_outputs constrain an answer"),
        ("guided_something_new", {"type": "object"}, "response_format and structured_outputs constrain an answer"),
        ("repeat_penalty", 1.1, "it is called repetition_penalty here: send repetition_penalty"),
        ("n_predict", 7, "it is called max_tokens here"),
        ("num_predict", -1, "it is called max_tokens here"),
        ("stop_sequences", ["x"], "it is called stop here"),
        ("no_stop_trim", True, "it is called include_stop_str_in_output here"),
        ("decoder_input_details", True, "it is called prompt_logprobs here"),
        ("do_sample", False, "temperature = 0"),
        ("mirostat", 2, "the samplers here"),
        ("mirostat_tau", 5, "the samplers here"),
        ("typical_p", 0.5, "the samplers here"),
        ("watermark", True, "the samplers here"),
        ("dry_something_new", 1, "the samplers here"),
        ("samplers", ["top_k"], "the samplers here"),
        ("parameters", {"adapter_id": "dates"}, "its fields stand in the body itself"),
        ("extra_body", {"top_k": 1}, "its fields stand in the body itself"),
        ("system", "be brief", "a message of role system"),
        ("think", False, 'chat_template_kwargs, such as {"enable_thinking": false}'),
        ("thinking_token_budget", 9, "send max_tokens"),
        ("images", ["x"], "only text"),
        ("speculative_config", {"method": "ngram"}, "drafts are chosen by draft and draft_tokens here: send draft = 'auto'"),
        ("speculative.p_min", 0.5, "send draft = 'auto'"),
        ("speculative.n_max", 16, "it is called draft_tokens here"),
        ("num_speculative_tokens", 5, "it is called draft_tokens here"),
        ("draft_model", "tiny", "a served model drafts if draft names it here: send draft = 'tiny'"),
        # met by a word of their names
        ("speakerAdapterName", "x", "an adapter is a model here"),
        ("fallback_models", ["x"], "it is called model here"),
        ("xgrammar_backend_rule", "x", "response_format and structured_outputs constrain an answer"),
        ("response_mime_type", "application/json", "response_format and structured_outputs constrain an answer"),
        ("sampling_seed", 5, "it is called seed here"),
        ("frequency_penalties", 1, "the samplers here"),
        ("suppress_tokens", [3], "bad_words, allowed_token_ids and logit_bias"),
        ("exponential_decay_length_penalty", [3, 1.1], "the samplers here"),
        ("maxTotalTokens", 9, "max_tokens and min_tokens bound an answer"),
        ("max_time", 3, "an answer ends at max_tokens, not after a time"),
        ("eos_tokens", ["x"], "an answer ends at stop"),
        ("include_reasoning", False, "reasoning is separated where"),
        ("reasoning", {"effort": "low"}, "chat_template_kwargs"),
        ("prefill", "Sure", "continue_final_message"),
        ("prompt_prefix", "x", "nothing is filled in"),
        ("chat_template_str", "x", "the checkpoint's own"),
        ("search_parameters", {"a": 1}, "send tools in a chat"),
        ("control_vectors", ["x"], "a prompt is text or token ids"),
        ("return_hidden_states", True, "return_token_ids"),
        ("safetySettings", [1], "answers are not filtered"),
        ("provider", {"order": ["x"]}, "one model answers"),
    ],
)
def test_fields_of_other_servers_are_refused_with_our_name_for_them(name: str, value: Any, says: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError, match=rf"^{name} \(.*\) is not supported by this server; ") as caught:
            parse(**{name: value})
        assert says in caught.value.message
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        *({name: None} for name in ("adapter_id", "temprature", "mirostat", "format", "options")),
        {"adapter_id": "", "lora": [], "grammar": "", "format": "", "watermark": False, "raw": False, "images": []},
        {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0, "tfs_z": 1, "repeat_penalty": 1.0},
        {"dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0, "xtc_threshold": 0.1, "mirostat_mode": 0},
        {"keep_alive": "5m", "cache_prompt": True, "id_slot": 3, "options": {"num_ctx": 4096, "num_thread": 4}},
        {"max_tokens": 7, "n_predict": 7, "maxTokens": 7, "max_new_tokens": 7.0},
        {"num_speculative_tokens": 0, "speculative.n_max": 0, "speculative_config": {}, "draft_model": ""},
        {"return_progress": True, "max_tokens_per_second": 9, "tenant": "x"},
        {"reasoning_format": "none", "separate_reasoning": False, "truncation": "disabled", "safetyIdentifier": "x"},
        {"end_user_id": "x", "timings_per_token": True, "prompt_cache_max_len": 3, "cfg_scale": 1.0, "max_time": 0},
        {"do_sample": True, "num_beams": 1, "wibble": 1, "features": {}, "requests": 1, "usage": {"include": True}},
    ],
)
def test_what_asks_for_nothing_is_ignored_and_reported(fields: dict[str, Any]) -> None:
    for parse in (completion, chat):
        assert parse(**fields).options.ignored == tuple(name for name in fields if name != "max_tokens")


@claim("Misspelt fields and fields of other servers are refused with the right name", of="http-api")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("topP", "top_p"),
        ("top-k", "top_k"),
        ("sede", "seed"),
        ("stops", "stop"),
        ("presense_penality", "presence_penalty"),
        ("modle", "model"),
        ("logitBias", "logit_bias"),
    ],
)
def test_misspelt_fields_are_refused_with_the_right_name(name: str, meant: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError, match=f"^{name} is not a field of this endpoint; did you mean {meant}\\?$") as caught:
            parse(**{name: 1})
        assert (caught.value.param, caught.value.code) == (name, "unknown_parameter")


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"temperature": 0}, "options.temperature", "send temperature in the body itself"),
        ({"num_ctx": 1, "num_predict": 3}, "options.num_predict", "it is called max_tokens here"),
        ({"mirostat": 1}, "options.mirostat", "the samplers here"),
        ({"repeatPenalty": 2}, "options.repeatPenalty", "repetition_penalty"),
    ],
)
def test_what_shapes_the_answer_within_a_group_is_refused(options: dict[str, Any], param: str, says: str) -> None:
    for parse in (completion, chat):
        with pytest.raises(ApiError, match=says) as caught:
            parse(options=options)
        assert caught.value.param == param


def test_fields_of_the_other_endpoint_are_refused() -> None:
    for parse, name, value in ((completion, "messages", HELLO), (chat, "prompt", "x"), (completion, "top_logprobs", 2)):
        with pytest.raises(ApiError, match=f"^{name} "):
            parse(**{name: value})


def test_what_is_said_of_foreign_fields_names_fields_that_there_are() -> None:
    known = {field.name for field in (*COMPLETION_FIELDS, *CHAT_FIELDS)}
    assert {one.named for one in GENERATING.values() if one.named} <= known
    for foreign in GENERATING.values():
        assert {*foreign.switches} <= GENERATING.keys()


def test_a_body_of_very_many_unknown_fields_is_compared_in_part() -> None:
    body: dict[str, Any] = {f"unknown{n}": n for n in range(5000)} | {"n_predict": 3}
    with pytest.raises(ApiError, match="max_tokens"):
        completion(**body)


def test_values_are_shown_as_json() -> None:
    with pytest.raises(ApiError, match=r'^functions \(\[\{"type": "é", "strict": true\}\]\) is not supported'):
        chat(functions=[{"type": "é", "strict": True}])
    with pytest.raises(ApiError, match=r'^functions \(\["\\ud800"\]\) is not supported'):
        chat(functions=["\ud800"])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("prefix", True, "send continue_final_message in the body"),
        ("images", ["x"], "only text is read"),
        ("thinking", "hm", "it is called reasoning_content here"),
        ("tools", [{}], "send tools there"),
    ],
)
def test_fields_of_messages_that_shape_the_answer_elsewhere_are_refused(name: str, value: Any, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        chat(messages=[{**HELLO[0], name: value}])
    assert caught.value.param == f"messages[0].{name}"
    assert chat(messages=[{**HELLO[0], name: type(value)()}]).options.ignored == ()

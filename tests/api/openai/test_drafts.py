"""Drafts in a request: its fields, the settings, the prediction's tokens, and the usage that tells what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.gateway.port import DraftCounts, StreamProgress
from blockwright.api.errors import ApiError
from blockwright.api.openai.bodies import parse_chat, parse_completion
from blockwright.policies.drafts.options import DraftOptions
from blockwright.tests.api.fake_port import MAX_LENGTH, events
from blockwright.tests.claims import claim

URL = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def predicted(content: Any = "so it is") -> dict[str, Any]:
    return {"type": "content", "content": content}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"draft": " "}, "draft", "draft is ' ', which is not a source of drafts; give off, prompt, tier:LAYERS"),
        ({"draft": "tier:x"}, "draft", "draft is 'tier:x', which is not a source of drafts; give off"),
        ({"draft": True}, "draft", "draft is true; give off, prompt, tier:LAYERS, auto or the id of another model"),
        *[
            ({"draft_tokens": value}, "draft_tokens", f"draft_tokens is {shown}; give an integer from 0 to 16")
            for value, shown in ((17, "17"), (1.5, "1.5"), (-1, "-1"), (10**9, "1000000000"), ("x", "'x'"), (True, "true"))
        ],
        ({"prediction": "so"}, "prediction", "prediction is 'so'; give an object"),
        ({"prediction": {"content": "so"}}, "prediction.type", "prediction.type is null; give content"),
        ({"prediction": predicted() | {"exact": True}}, "prediction.exact", "prediction has no field 'exact'"),
        ({"prediction": {"type": "content"}}, "prediction.content", "prediction.content is null or missing; give a string"),
        ({"prediction": predicted(7)}, "prediction.content", "prediction.content is 7; give a string or a list"),
        ({"prediction": predicted([{"type": "image_url"}])}, "prediction.content[0]", "this server takes text parts only"),
        ({"drafts": "off"}, "drafts", "did you mean draft"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(fields: dict[str, Any], param: str, says: str) -> None:
    for parse, body in ((parse_completion, {"prompt": "x"}), (parse_chat, {"messages": HELLO})):
        with pytest.raises(ApiError) as caught:
            parse({**body, **fields}, "warn")
        assert says in caught.value.message
        assert caught.value.param == param


async def test_the_fields_and_the_settings_reach_the_gateway(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("x"), settings={"drafts": {"tiny": "prompt"}, "draft_tokens": 3})
    tokens = codec.encode("so it is", special=False)
    asked: list[tuple[dict[str, Any], DraftOptions | None]] = [
        ({}, DraftOptions(prompt=True, tokens=3)),
        ({"model": "org/other"}, None),
        ({"model": "org/other", "draft": "auto", "draft_tokens": 0}, DraftOptions(prompt=True)),
        ({"draft": "off", "prediction": predicted()}, None),
        ({"prediction": predicted()}, DraftOptions(prompt=True, tokens=3, prediction=tokens)),
        (
            {"model": "org/other", "prediction": predicted([{"type": "text", "text": part} for part in ("so it", " is")])},
            DraftOptions(tokens=3, prediction=tokens),
        ),
    ]
    for fields, drafts in asked:
        answer = await client.post(URL, json={"prompt": "a", "max_tokens": 2, **fields})
        assert answer.status == 200
        assert port.streams[-1].generation.drafts == drafts


async def test_a_prediction_longer_than_the_context_is_refused(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings={"max_characters": 200})
    for text, says in (
        ("x" * (MAX_LENGTH + 1), f"prediction has {MAX_LENGTH + 1} tokens, more than the context of tiny holds"),
        ("x" * 201, "the prediction has 201 characters, more than the limit of 200; shorten it"),
    ):
        answer = await client.post(URL, json={"prompt": "a", "prediction": predicted(text)})
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], error["code"]) == (400, "prediction", "context_length_exceeded")
        assert says in error["message"]
    assert not port.streams


@claim("The usage has the number of accepted tokens of a prediction", of="http-api")
async def test_the_usage_counts_the_prediction_over_all_choices(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    generate = port.generate

    def counted(generation: Any) -> Any:
        stream = generate(generation)
        counts = {"prediction": DraftCounts(1, 5, 3), "prompt": DraftCounts(2, 9, 9)}
        stream.now = StreamProgress(prompt=len(generation.prompt), drafts=counts)
        return stream

    port.generate = counted
    body = {"prompt": "a", "n": 2, "prediction": predicted(), "draft": "prompt"}
    values = {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 4}
    answer = await client.post(URL, json=body)
    assert (await answer.json())["usage"]["completion_tokens_details"] == values
    answer = await client.post(URL, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    assert events(await answer.read())[-1]["usage"]["completion_tokens_details"] == values
    answer = await client.get("/metrics")
    seen = await answer.text()
    assert 'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny",source="prediction"} 12.0' in seen
    assert 'vllm:spec_decode_num_drafts_total{model_name="tiny",source="prompt"} 8.0' in seen

"""What each field of a generating request does, over scripts of tokens."""

import json
from typing import Any

import pytest

from blockwright.api.openai.sampling import bad_word_ids
from blockwright.policies.plan.sampling import TokenRules
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.urgency import TIERS, urgency
from blockwright.tests.api.fake_port import EOS, MAX_LENGTH, events, make_folder, one_by_one, prompt_scored, tokens_emitted
from blockwright.tests.claims import claim

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


async def choice_of(client: Any, **fields: Any) -> dict[str, Any]:
    answer = await client.post(COMPLETIONS, json={"prompt": "a", **fields})
    body = await answer.json()
    assert answer.status == 200, body
    found: dict[str, Any] = body["choices"][0]
    return found


async def refused(client: Any, url: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    answer = await client.post(url, json={"messages" if url == CHAT else "prompt": HELLO if url == CHAT else "a", **fields})
    body = await answer.json()
    assert answer.status == 400, body
    error: dict[str, Any] = body["error"]
    return error


async def test_rules_reach_the_gateway(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("x"))
    fields: dict[str, Any] = {
        "logit_bias": {"9": -100, "11": 2}, "allowed_token_ids": [9, 11], "bad_words": ["the", " on"], "min_tokens": 3,
        "stop_token_ids": [7, EOS], "min_p": 0.25, "priority": -2, "service_tier": "fast", "max_tokens": 9,
    }  # fmt: skip
    await choice_of(client, **fields)
    generation = port.streams[0].generation
    assert generation.sampling.rules == TokenRules(
        allowed=[9, 11], banned=[*bad_word_ids(codec, "the"), *bad_word_ids(codec, "on")],
        bias=[(9, -100.0), (11, 2.0)], min_tokens=3, ends=[EOS, 7],
    )  # fmt: skip
    assert generation.sampling.min_p == 0.25
    assert generation.stop_tokens == [EOS, 7]
    assert generation.priority == urgency("fast", -2)
    await choice_of(client)
    assert port.streams[1].generation.sampling.rules is None
    assert port.streams[1].generation.priority == 0


def test_bad_words_as_they_stand_at_the_start_and_within_a_text(codec: Any) -> None:
    """ "a" is one token with and without the space before it; "he" is one, with the space two."""
    tokens = {text: codec.encode(text, special=False) for text in ("a", " a", "he", " he")}
    assert [len(ids) for ids in tokens.values()] == [1, 1, 1, 2]
    assert bad_word_ids(codec, " a") == [tokens["a"], tokens[" a"]]
    assert bad_word_ids(codec, "he") == [tokens["he"]]


def test_a_tier_counts_more_than_any_priority() -> None:
    lowest, highest = (1 << 31) - 1, -(1 << 31)
    assert urgency("priority", lowest) < urgency("default", highest) <= urgency("auto", highest) < urgency("auto", lowest)
    assert urgency("scale", lowest) < urgency("flex", highest)
    assert all(name in TIERS for name, _ in TIERS.values())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"269": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1, 500]}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ],
)
async def test_token_ids_outside_the_vocabulary(serve: Any, fields: Any, param: str) -> None:
    client, _ = await serve()
    error = await refused(client, **fields)
    assert error["param"] == param
    assert "give ids from 0 to 268" in error["message"]


@pytest.mark.parametrize(("tier", "echoed"), [("auto", "default"), ("flex", "flex"), ("priority", "priority")])
async def test_the_service_tier_is_echoed(serve: Any, say: Any, tier: str, echoed: str) -> None:
    client, _ = await serve(say("x"))
    for url, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        answer = await client.post(url, json={**body, "service_tier": tier})
        assert (await answer.json())["service_tier"] == echoed
        answer = await client.post(url, json={**body, "service_tier": tier, "stream": True})
        assert {chunk["service_tier"] for chunk in events(await answer.read())} == {echoed}
        answer = await client.post(url, json=body)
        assert "service_tier" not in await answer.json()


async def test_a_stop_token_of_the_request_is_the_reason(serve: Any, codec: Any) -> None:
    tokens = codec.encode("ab", special=False)
    client, port = await serve(lambda g: [tokens_emitted(tokens, finish="stop")])
    choice = await choice_of(client, stop_token_ids=[tokens[-1]])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", tokens[-1])
    shown = await choice_of(client, stop_token_ids=[tokens[-1]], include_stop_str_in_output=True)
    assert (shown["text"], shown["stop_reason"]) == ("ab", tokens[-1])
    await choice_of(client, stop_token_ids=[tokens[-1]], ignore_eos=True)
    assert port.streams[-1].generation.stop_tokens == [tokens[-1]]


async def test_the_stop_string_can_be_shown(serve: Any, say: Any) -> None:
    client, _ = await serve(say("one STOP two"))
    choice = await choice_of(client, stop="STOP", include_stop_str_in_output=True)
    assert (choice["text"], choice["stop_reason"]) == ("one STOP", "STOP")


async def test_no_stop_string_before_min_tokens(serve: Any, say: Any, codec: Any) -> None:
    text = "ab!cd!ef"
    client, _ = await serve(say(text))
    assert (await choice_of(client, stop="!"))["text"] == "ab"
    assert (await choice_of(client, stop="!", min_tokens=2))["text"] == "ab"
    assert (await choice_of(client, stop="!", min_tokens=3))["text"] == "ab!cd"


async def test_special_tokens_can_be_shown(serve: Any, codec: Any) -> None:
    tokens = [*codec.encode("a", special=False), 1, *codec.encode("b", special=False)]
    client, _ = await serve(lambda g: one_by_one(tokens))
    assert (await choice_of(client))["text"] == "ab"
    assert (await choice_of(client, skip_special_tokens=False))["text"] == "a<s>b"
    assert (await choice_of(client, skip_special_tokens=False, prompt=[1, 5], echo=True))["text"][:3] == "<s>"


async def test_truncation_keeps_the_end(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    long = list(range(3, 3 + MAX_LENGTH + 20))
    await choice_of(client, prompt=long, truncate_prompt_tokens=5)
    await choice_of(client, prompt=long, truncate_prompt_tokens=-1, max_tokens=4)
    await choice_of(client, prompt=long[:3], truncate_prompt_tokens=500)
    assert [s.generation.prompt for s in port.streams] == [long[-5:], long[4 - MAX_LENGTH :], long[:3]]
    error = await refused(client, prompt=long, truncate_prompt_tokens=0)
    assert (error["param"], "leaves no prompt; give at least 1" in error["message"]) == ("truncate_prompt_tokens", True)
    error = await refused(client, prompt=long, truncate_prompt_tokens=-1, max_tokens=MAX_LENGTH)
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert "holds 64 tokens and 64 new ones were asked for, which leaves no room for a prompt" in error["message"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"min_tokens": 1}, "min_tokens forbid every token of allowed_token_ids"),
        ({"bad_words": ["</s>"]}, "bad_words forbid every token of allowed_token_ids"),
        ({"min_tokens": 1, "bad_words": ["a"]}, "min_tokens and bad_words forbid every token of allowed_token_ids"),
    ],
)
async def test_allowed_tokens_that_are_all_forbidden(serve: Any, say: Any, more: dict[str, Any], says: str) -> None:
    client, _ = await serve(say("x"))
    error = await refused(client, allowed_token_ids=[EOS], max_tokens=3, **more)
    assert (error["param"], says in error["message"]) == ("allowed_token_ids", True), error
    assert await choice_of(client, allowed_token_ids=[EOS, 70], max_tokens=3, **more)


async def test_special_tokens_around_the_prompt(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("x"))
    await choice_of(client, prompt="once", add_special_tokens=False)
    await client.post(CHAT, json={"messages": HELLO, "add_special_tokens": True})
    assert port.streams[0].generation.prompt == codec.encode("once", special=False)
    assert port.streams[1].generation.prompt == codec.encode("<s><user>hi\n<assistant>", special=True)


@claim("Several choices, log-probabilities, echo and all forms of prompts are served as documented", of="http-api")
async def test_echo_of_texts_and_ids(serve: Any, say: Any, codec: Any) -> None:
    client, _ = await serve(say("!"))
    assert (await choice_of(client, prompt="once on", echo=True))["text"] == "once on!"
    ids = codec.encode("once on", special=False)
    assert (await choice_of(client, prompt=ids, echo=True))["text"] == "once on!"
    nothing = await choice_of(client, prompt=ids, echo=True, max_tokens=0, return_token_ids=True)
    assert (nothing["text"], nothing["token_ids"], nothing["finish_reason"]) == ("once on", [], "length")
    answer = await client.post(COMPLETIONS, json={"prompt": ["a", "b"], "echo": True, "n": 2})
    assert [c["text"] for c in (await answer.json())["choices"]] == ["a!", "a!", "b!", "b!"]


async def test_echo_with_logprobs_has_the_prompt_first(serve: Any, codec: Any) -> None:
    ids = codec.encode("on", special=False)
    answer_ids = codec.encode("!?", special=False)
    entries = [TokenLogprob(-0.25, [(5, -0.125), (6, -2.0)], rank=2)] * (len(ids) + 1)

    def script(generation: Any) -> list[Any]:
        assert generation.sampling.prompt_logprobs == 2
        more = [TokenLogprob(-1.0, [(5, -0.5)])]
        return [prompt_scored(entries), tokens_emitted(answer_ids[:1], more), tokens_emitted(answer_ids[1:], more, "length")]

    client, _ = await serve(script)
    prompt = [1, *ids, 9]
    choice = await choice_of(client, prompt=prompt, echo=True, logprobs=1, prompt_logprobs=2, skip_special_tokens=False)
    columns = choice["logprobs"]
    assert columns["tokens"][0] == "<s>"
    assert columns["token_logprobs"] == [None, *[-0.25] * (len(prompt) - 1), -1.0, -1.0]
    assert [len(top) if top else top for top in columns["top_logprobs"]] == [None, *[2] * (len(prompt) + 1)]
    text = choice["text"]
    assert [text[at:].startswith(token) for at, token in zip(columns["text_offset"], columns["tokens"], strict=True)] == [
        True
    ] * len(columns["tokens"])
    own = choice["prompt_logprobs"][1][str(ids[0])]
    assert own == {"logprob": -0.25, "rank": 2, "decoded_token": codec.token_bytes(ids[0]).decode()}
    assert choice["prompt_logprobs"][1]["6"]["rank"] == 2


async def test_prompt_logprobs_of_a_chat_stand_on_top(serve: Any) -> None:
    def script(generation: Any) -> list[Any]:
        count = len(generation.prompt) - 1
        return [prompt_scored([TokenLogprob(-0.5, [], rank=1)] * count), tokens_emitted([9], finish="length")]

    client, port = await serve(script)
    body = await (await client.post(CHAT, json={"messages": HELLO, "prompt_logprobs": 0})).json()
    prompt = port.streams[0].generation.prompt
    assert [entry and list(entry) for entry in body["prompt_logprobs"]] == [None, *([str(t)] for t in prompt[1:])]


async def test_request_id_names_the_request(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"))
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "request_id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "request_id": "mine"}, headers={"x-request-id": "outer"})
    assert answer.headers["x-request-id"] == "outer"


async def test_templates_of_requests_are_refused_by_name(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    for path in (CHAT, "/tokenize"):
        answer = await client.post(path, json={"messages": HELLO, "chat_template": "{{ messages }}"})
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], error["code"]) == (400, "chat_template", "unsupported_parameter")
        assert (await client.post(path, json={"messages": HELLO, "chat_template": None})).status == 200
    assert len(port.streams) == 1


async def test_variables_of_the_template(serve: Any, say: Any, codec: Any, tmp_path: Any) -> None:
    folder = make_folder(tmp_path / "shouting")
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ shout }}{{ messages[0].content * (times or 1) }}")
    client, port = await serve(say("x"), folder=folder, settings={"max_body": 1000})
    fields = {"messages": HELLO, "chat_template_kwargs": {"shout": "HEY "}}
    assert (await client.post(CHAT, json=fields)).status == 200
    assert codec.decode(port.streams[0].generation.prompt, special=True) == "<s>HEY hi"
    error = await refused(client, CHAT, chat_template_kwargs={"times": 20_000})
    assert (error["param"], error["code"]) == ("messages", "template_error")
    assert "makes 40003 characters of these messages, more than max_body (1000)" in error["message"]
    error = await refused(client, CHAT, chat_template_kwargs={"times": 10**12})
    assert "makes a value of 2000000000000 characters, more than 20000000; send less" in error["message"]


async def test_the_last_message_can_be_continued(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("x"))
    messages = [*HELLO, {"role": "assistant", "content": "Once "}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert (await client.post(CHAT, json=fields)).status == 200
    assert (await client.post(CHAT, json={"messages": HELLO, "add_generation_prompt": False})).status == 200
    shown = [codec.decode(stream.generation.prompt, special=True) for stream in port.streams]
    assert shown == ["<s><user>hi\n<assistant>Once ", "<s><user>hi\n"]


async def test_line_separators_are_escaped(serve: Any, say: Any) -> None:
    text = "a\u2028b\u2029c\u0085d"
    client, _ = await serve(say(text))
    for stream in (False, True):
        answer = await client.post(COMPLETIONS, json={"prompt": "a", "stream": stream, "max_tokens": 40})
        raw = await answer.read()
        raw.decode("ascii")
        chunks = events(raw) if stream else [json.loads(raw)]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def test_unknown_fields_of_messages_are_reported_or_refused(serve: Any, say: Any) -> None:
    parts = [{"type": "text", "text": "b", "cache_control": {}}]
    message = {"role": "assistant", "content": "a", "refusal": None, "tool_calls": [], "name": "x"}  # as SDKs give back
    odd = {"messages": [message, {"role": "user", "content": parts, "weight": 1}]}
    client, _ = await serve(say("x"))
    answer = await client.post(CHAT, json=odd)
    assert answer.headers["x-ignored-fields"] == "messages[1].weight, messages[1].content[0].cache_control"
    answer = await client.post(CHAT, json={"messages": [message]})
    assert (answer.status, "x-ignored-fields" in answer.headers) == (200, False)
    client, _ = await serve(say("x"), settings={"unknown_fields": "reject"})
    error = await refused(client, CHAT, **odd)
    assert (error["param"], error["code"]) == ("messages[1].weight", "unknown_parameter")
    assert (await client.post(CHAT, json={"messages": [message]})).status == 200


async def test_more_choices_than_there_can_be_places_for(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings={"max_waiting": 9, "gateways": 2})
    error = await refused(client, n=3, prompt=["a", "b"])
    assert (error["param"], "6 choices are more than a gateway accepts at a time (5, from" in error["message"]) == (
        "n",
        True,
    )
    assert (await refused(client, prompt=["a"] * 6))["param"] == "prompt"
    assert port.streams == []
    assert (await client.post(COMPLETIONS, json={"prompt": "a", "n": 5})).status == 200

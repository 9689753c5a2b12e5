"""What the openai package (2.x and 3.x) gets from a server: ``check_openai.py URL MODEL``. Prints what it has checked."""

from __future__ import annotations

import asyncio
import sys

import openai

URL, MODEL = sys.argv[1:]
HELLO = [{"role": "user", "content": "Say hello."}]
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} openai {openai.__version__}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def whole_answers() -> None:
    models = client.models.list().data
    check("models.list", [m.id for m in models] == [MODEL])
    check("models.retrieve", client.models.retrieve(MODEL).id == MODEL)
    chat = client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=8, temperature=0)
    check("chat", chat.object == "chat.completion" and chat.choices[0].message.role == "assistant")
    check(
        "usage",
        chat.usage is not None and chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens,
    )
    check("request id", bool(chat._request_id))
    several = client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=4, logprobs=True, top_logprobs=2)
    check("n", [choice.index for choice in several.choices] == [0, 1, 2])
    content = several.choices[0].logprobs.content
    check("logprobs", bool(content) and all(len(entry.top_logprobs) == 2 for entry in content))
    ids = [5, 6, 7]
    for prompt, count in (("once", 1), (["once", "upon"], 2), (ids, 1), ([ids, ids], 2)):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0)
        check(f"completions of {type(prompt).__name__}", len(answer.choices) == count)
    echo = client.completions.create(model=MODEL, prompt="once upon", max_tokens=2, echo=True, logprobs=1)
    check("echo", echo.choices[0].text.startswith("once upon") and echo.choices[0].logprobs.token_logprobs[0] is None)
    extra = {"ignore_eos": True, "min_p": 0.1, "return_token_ids": True, "stop_token_ids": [5]}
    long = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=9, extra_body=extra, service_tier="flex")
    check("extra_body", long.service_tier == "flex" and 1 <= len(long.choices[0].token_ids) <= 9)
    first, again = (
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=9, seed=7, temperature=1)
        .choices[0]
        .message.content
        for _ in range(2)
    )
    check("seed", first == again)


def streams() -> None:
    options = {"include_usage": True}
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    text = ""
    usage = None
    finish = None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, stream=True, stream_options=options
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    check("stream", text == whole.choices[0].message.content and finish == whole.choices[0].finish_reason)
    check("stream usage", usage is not None and usage.completion_tokens == whole.usage.completion_tokens)
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_completion_tokens=12, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check("stream helper", final.choices[0].message.content == text)
    pieces = client.completions.create(model=MODEL, prompt="once", max_tokens=8, n=2, stream=True)
    check("completions stream", {choice.index for chunk in pieces for choice in chunk.choices} == {0, 1})


def errors() -> None:
    cases = (
        (openai.NotFoundError, "model_not_found", lambda: client.models.retrieve("none")),
        (openai.BadRequestError, "unsupported_model", lambda: client.embeddings.create(model=MODEL, input="a")),
        (
            openai.BadRequestError,
            "no_turn_template",
            lambda: client.chat.completions.create(
                model=MODEL, messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}]
            ),
        ),
        (
            openai.BadRequestError,
            "context_length_exceeded",
            lambda: client.completions.create(model=MODEL, prompt=[5] * 100_000, max_tokens=1),
        ),
    )
    for kind, code, call in cases:
        try:
            call()
        except kind as error:
            check(f"{kind.__name__} {code}", error.code == code and bool(error.body))
        else:
            check(f"{kind.__name__} {code}", False)


async def together() -> None:
    many = openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    calls = [many.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, temperature=0) for _ in range(8)]
    texts = {answer.choices[0].message.content for answer in await asyncio.gather(*calls)}
    check("eight at a time", len(texts) == 1)
    await many.close()


whole_answers()
streams()
errors()
asyncio.run(together())

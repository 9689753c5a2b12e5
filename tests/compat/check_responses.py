"""Checks of ``/v1/responses`` by the openai package (2.x and 3.x): ``check_responses.py URL MODEL [ROUNDS]``.

Answers and events are parsed by the package's own types, strictly. Prints what it has checked.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

URL, MODEL = sys.argv[1:3]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
ASK = "weather?"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


class Day(BaseModel):
    """The arguments of the function weather, and the form of an answer."""

    day: Literal["today", "tomorrow"]
    hour: int = Field(ge=0, le=23)


SCHEMA = {**Day.model_json_schema(), "additionalProperties": False}
WEATHER: Any = {"type": "function", "name": "weather", "description": "of a day", "parameters": SCHEMA, "strict": True}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "regex", "definition": r'[+-][ab"\n]{1,5}'},
}
NONE: Any = {"effort": "none"}


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} openai {openai.__version__}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def whole(**asked: Any) -> Response:
    """Return an answer that the client's types have checked strictly."""
    raw = client.responses.with_raw_response.create(model=MODEL, **asked)
    text = raw.http_response.text
    Response.model_validate_json(text, strict=True)
    return raw.parse()


def events(**asked: Any) -> list[Any]:
    """Return the events of a stream, each checked strictly."""
    made = []
    with client.responses.with_streaming_response.create(model=MODEL, stream=True, **asked) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                made.append(EVENT.validate_json(line.removeprefix("data: "), strict=True))
    check("numbers of events", [event.sequence_number for event in made] == list(range(len(made))))
    return made


def texts() -> None:
    asked: Any = {"input": ASK, "max_output_tokens": 24, "temperature": 1.0, "extra_body": {"seed": 5}, "reasoning": NONE}
    answer = whole(**asked)
    check("answer", answer.object == "response" and answer.model == MODEL and not answer.model_extra["store"])
    chat: Any = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": ASK}],
        max_tokens=24,
        temperature=1.0,
        seed=5,
        reasoning_effort="none",
    )
    check("the text of a chat", answer.output_text == (chat.choices[0].message.content or ""))
    check("its usage", answer.usage is not None and answer.usage.output_tokens == chat.usage.completion_tokens)
    check("the status", answer.status == ("incomplete" if chat.choices[0].finish_reason == "length" else "completed"))
    found = events(**asked)
    check("first and last events", found[0].type == "response.created" and found[-1].type == f"response.{answer.status}")
    text = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    check("deltas join", text == answer.output_text == found[-1].response.output_text)
    scored = whole(**asked, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = [one for item in scored.output if item.type == "message" for one in item.content[0].logprobs or ()]
    check("logprobs", all(len(one.top_logprobs) == 2 for one in entries))


def structured(seed: int) -> None:
    asked: Any = {"input": ASK, "text_format": Day, "reasoning": NONE, "temperature": 1.0, "extra_body": {"seed": seed}}
    answer = client.responses.parse(model=MODEL, max_output_tokens=200, **asked)
    if answer.status == "completed":
        check("responses.parse", isinstance(answer.output_parsed, Day))
    with client.responses.stream(model=MODEL, max_output_tokens=200, **asked) as stream:
        kinds = [event.type for event in stream]
        check("stream helper", kinds[0] == "response.created")
        if answer.status == "completed":
            check("its final response", stream.get_final_response().output_parsed == answer.output_parsed)


def functions(seed: int) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    asked: Any = {"input": ASK, "tools": [WEATHER, PATCH], "reasoning": NONE, "temperature": 1.0}
    asked |= {"max_output_tokens": 300, "extra_body": {"seed": seed}}
    answer = whole(**asked, tool_choice=choice)
    (call,) = (item for item in answer.output if item.type == "function_call")
    Day.model_validate_json(call.arguments)
    check("a named function", call.name == "weather")
    found = events(**asked, tool_choice=choice)
    pieces = [event.delta for event in found if event.type == "response.function_call_arguments.delta"]
    check("its arguments, streamed", "".join(pieces) == call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    history = [{"role": "user", "content": ASK}, *(item.to_dict() for item in answer.output), result]
    after = whole(**{**asked, "input": history, "max_output_tokens": 9}, tool_choice="none")
    check("the answer to a result", all(item.type in ("message", "reasoning") for item in after.output))


def custom(seed: int) -> None:
    asked: Any = {"input": ASK, "tools": [WEATHER, PATCH], "tool_choice": {"type": "custom", "name": "patch"}}
    asked |= {"max_output_tokens": 300, "temperature": 1.0, "reasoning": NONE, "extra_body": {"seed": seed}}
    answer = whole(**asked)
    (call,) = (item for item in answer.output if item.type == "custom_tool_call")
    text = call.input
    check("a custom tool in its grammar", text[0] in "+-" and 2 <= len(text) <= 6 and not set(text[1:]) - set('ab"\n'))
    found = events(**asked)
    pieces = [event.delta for event in found if event.type == "response.custom_tool_call_input.delta"]
    check("its input, streamed", "".join(pieces) == text)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    history = [{"role": "user", "content": ASK}, *(item.to_dict() for item in answer.output), result]
    whole(**{**asked, "input": history, "max_output_tokens": 9, "tool_choice": "none"})


def refusals() -> None:
    for name, fields in {
        "previous_response_id": {"previous_response_id": "resp_1"},
        "background": {"background": True},
        "input[0].content[0]": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    }.items():
        try:
            client.responses.create(**{"model": MODEL, "input": ASK, **fields})
        except openai.BadRequestError as error:
            check(f"{name} is refused", error.param == name and name in json.dumps(error.body))
        else:
            check(f"{name} is refused", False)


texts()
for number in range(ROUNDS):
    structured(number)
    functions(number)
    custom(number)
refusals()

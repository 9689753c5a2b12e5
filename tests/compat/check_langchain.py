"""Structured output and tools of langchain-openai: ``check_langchain.py URL MODEL``. Prints what it has checked."""

from __future__ import annotations

import sys
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

URL, MODEL = sys.argv[1:]
ASK = "What is the weather?"


class Day(BaseModel):
    """A day and an hour of it."""

    model_config = ConfigDict(extra="forbid")
    day: Literal["today", "tomorrow"]
    hour: int = Field(ge=0, le=23)


@tool
def weather(day: Literal["today", "tomorrow"]) -> str:
    """Say the weather of a day."""
    return f"rain {day}"


@tool
def now() -> str:
    """Say the time."""
    return "noon"


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} langchain: {name}", flush=True)
    if not holds:
        sys.exit(1)


def chat(seed: int) -> ChatOpenAI:
    common: Any = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "max_retries": 0, "reasoning_effort": "none"}
    return ChatOpenAI(**common, temperature=1.0, seed=seed, max_tokens=400)


def structured(seed: int) -> None:
    for method in ("json_schema", "function_calling"):
        for strict in (True, None):
            asking: Any = chat(seed).with_structured_output(Day, method=method, include_raw=True, strict=strict)
            found = asking.invoke(ASK)
            check(f"{method}, strict {strict}", found["parsing_error"] is None and isinstance(found["parsed"], Day))
    *_, last = chat(seed).with_structured_output(Day, method="json_schema").stream(ASK)
    check("json_schema, streamed", isinstance(last, Day))
    plain: Any = chat(seed).with_structured_output(Day.model_json_schema(), method="json_schema").invoke(ASK)
    check("json_schema from a dict", Day.model_validate(plain) is not None)


def tools(seed: int) -> None:
    for choice in ("any", "weather", "required"):
        asked = chat(seed).bind_tools([weather], tool_choice=choice, strict=True, parallel_tool_calls=False)
        answer = asked.invoke(ASK)
        (call,) = answer.tool_calls
        check(f"bind_tools, {choice}", call["name"] == "weather" and call["args"]["day"] in ("today", "tomorrow"))
        whole: Any = None
        for chunk in asked.stream(ASK):
            whole = chunk if whole is None else whole + chunk
        check(f"bind_tools, {choice}, streamed", [one["args"] for one in whole.tool_calls] == [call["args"]])
    history = [HumanMessage(ASK), answer, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    after = chat(seed).bind_tools([weather, now], tool_choice="none").invoke(history)
    check("the answer to a result", not after.tool_calls and isinstance(after.content, str))


for seed in range(3):
    structured(seed)
    tools(seed)

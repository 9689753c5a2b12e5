"""Checks of ``/v1/responses`` by openai-agents: ``check_agents.py URL MODEL``.

Two tools, a hand-off and an answer in JSON, by a model that writes random words: the structure is what is checked. Prints
what it has checked.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    ToolCallItem,
    ToolCallOutputItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
called: list[tuple[str, str]] = []


class Plan(BaseModel):
    """The form of the last answer."""

    day: Literal["today", "tomorrow"]
    umbrella: bool


@function_tool
def weather(day: Literal["today", "tomorrow"]) -> str:
    """Say the weather of a day."""
    called.append(("weather", day))
    return "rain"


@function_tool
def clock(zone: Literal["UTC", "CET"]) -> str:
    """Say the time of a zone."""
    called.append(("clock", zone))
    return "12:00"


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} openai-agents {version('openai-agents')}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def settings(choice: str | None = None) -> ModelSettings:
    extra = {"seed": 3}
    return ModelSettings(
        tool_choice=choice,
        temperature=1.0,
        max_tokens=400,
        reasoning=Reasoning(effort="none"),
        extra_body=extra,
        store=False,
    )


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    model = OpenAIResponsesModel(MODEL, client)
    config = RunConfig(tracing_disabled=True)
    for name in ("weather", "clock"):
        one = Agent(
            name="one",
            instructions="Use a tool.",
            model=model,
            tools=[weather, clock],
            model_settings=settings(name),
            tool_use_behavior="stop_on_first_tool",
        )
        result = await Runner.run(one, "What is it like?", run_config=config)
        check(f"the tool {name}", called[-1][0] == name and result.final_output in ("rain", "12:00"))
    both = Agent(name="both", model=model, tools=[weather, clock], model_settings=settings("required"))
    result = await Runner.run(both, "What is it like?", run_config=config, max_turns=6)
    kinds = [type(item) for item in result.new_items]
    check("calls, their results and an answer", ToolCallItem in kinds and ToolCallOutputItem in kinds)
    writer = Agent(name="writer", model=model, output_type=Plan, model_settings=settings())
    result = await Runner.run(writer, "Plan.", run_config=config)
    check("an answer in JSON", isinstance(result.final_output, Plan))
    first = Agent(name="first", model=model, handoffs=[writer], model_settings=settings("transfer_to_writer"))
    result = await Runner.run(first, "Plan.", run_config=config)
    check("a hand-off", result.last_agent is writer and isinstance(result.final_output, Plan))
    stream = Runner.run_streamed(first, "Plan.", run_config=config)
    seen = [event.type async for event in stream.stream_events()]
    check("the same, streamed", isinstance(stream.final_output, Plan) and "agent_updated_stream_event" in seen)
    await client.close()


asyncio.run(main())

"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: a chat in the form of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from ..http.context import FRONT, IGNORED
from ..openai.chat import chat_prompts
from ..openai.generate import GenerateHandler, GeneratingEndpoint
from ..openai.request_body import read_body
from ..openai.turns import effort_variables
from ..text.turn.template import THINKING
from .answers import TokenCount
from .bodies import MessageBody, parse_count, parse_message
from .shape import MessageShape


async def _prompts(call: GenerateHandler, body: MessageBody) -> None:
    source = call.served.template.source if call.served.template is not None else ""
    template = replace(body.chat.template, chat_template_kwargs=_variables(source, body))
    await chat_prompts(call, replace(body.chat, template=template))
    call.request[IGNORED] = (*body.options.ignored, *_without_effect(call, body, template.chat_template_kwargs))


def _variables(source: str, body: MessageBody) -> dict[str, Any]:
    """Return the variables of a chat template that thinking and effort set."""
    made: dict[str, Any] = {}
    if body.thinking is not None:
        values = {"enable_thinking": body.thinking.on, "thinking_budget": body.thinking.budget}
        made = {name: value for name, value in values.items() if value is not None and name in source}
    return made | (effort_variables(source, body.effort, made) or {})


def _without_effect(call: GenerateHandler, body: MessageBody, variables: Mapping[str, Any]) -> list[str]:
    """Return the names of fields that ask for another thinking than the model's, and set no variable of its template."""
    found = []
    thinks = call.turn is not None and THINKING in call.turn.template.regions
    if body.thinking is not None and "enable_thinking" not in variables and body.thinking.on != thinks:
        found.append("thinking")
    if body.thinking is not None and body.thinking.budget is not None and "thinking_budget" not in variables:
        found.append("thinking.budget_tokens")
    switched = body.thinking is None and "enable_thinking" in variables
    if body.effort is not None and "reasoning_effort" not in variables and not switched:
        found.append("output_config.effort")
    return found


async def count_tokens(request: web.Request) -> web.Response:
    """Answer with the number of tokens that a message's prompt would have."""
    front = request.app[FRONT]
    body = await read_body(request, partial(parse_count, unknown=front.settings.requests.unknown_fields))
    call = await MESSAGES.prompted(front, request, body)
    answer: TokenCount = {"input_tokens": len(call.prompts[0])}
    return web.json_response(answer)


MESSAGES = GeneratingEndpoint(path="/v1/messages", parse=parse_message, prompts=_prompts, shape=MessageShape)

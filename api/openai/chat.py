"""``POST /v1/chat/completions``: the assistant's next message."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from ...actors.gateway.port import ModelInfo
from ..errors import bad_request
from ..http.catalog import ServedModel
from ..http.context import IGNORED, Front
from ..text.chat_template import ChatTemplate, Rendering
from ..text.turn.reader import TurnDelta
from .bodies import ChatBody, parse_chat
from .choice import ChoiceText, TextPiece
from .fields import TemplateOptions
from .generate import AnswerShape, GenerateHandler, GeneratingEndpoint
from .logprobs import chat_logprobs, prompt_logprobs
from .model_defaults import with_system
from .turns import effort_variables, turn_for

_LETTERS = string.ascii_letters + string.digits
_ID = 9  # characters of a call's id: as many as the templates of Mistral demand


async def chat_prompts(call: GenerateHandler, body: ChatBody) -> None:
    """Fill in the prompt of a chat, and how its answer is read. Raise a 400."""
    template, options = body.template, body.options
    source = call.served.template.of(options.tools).source if call.served.template is not None else ""
    effort = effort_variables(source, options.reasoning_effort, template.chat_template_kwargs)
    if effort:
        template = replace(template, chat_template_kwargs={**template.chat_template_kwargs, **effort})
    elif effort is None and options.reasoning_effort != "none":
        call.request[IGNORED] = (*options.ignored, "reasoning_effort")
    tools = [tool.given for tool in options.tools]
    text = await render(call.front, call.info, call.served, body.messages, template, tools)
    call.turn = turn_for(call.front, call.info, call.served, options, text)
    call.prompts = [await call.tokens(text, special=body.options.add_special_tokens)]
    call.continues = body.template.continue_final_message


async def render(
    front: Front,
    info: ModelInfo,
    served: ServedModel,
    messages: list[dict[str, Any]],
    options: TemplateOptions,
    tools: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the prompt of a conversation, with the model's own system message if it has none. Raise a 400."""
    messages = with_system(messages, info.defaults)
    how = Rendering(
        options.add_generation_prompt,
        options.continue_final_message,
        options.chat_template_kwargs,
        front.max_body,
        tools,
    )
    if served.template is None:
        raise bad_request(
            f"{info.id} has no chat template (chat_template.jinja, or chat_template of tokenizer_config.json); "
            "use /v1/completions, or add one to the checkpoint",
            "messages",
            "no_chat_template",
        )
    template = served.template.of(tools)
    text = template.render_short(messages, how)
    if text is None:
        text = await front.run_in_thread(lambda: template.render(messages, how))
    _check_history(messages, served.template, info.id, tools=bool(tools))
    return text


def _check_history(messages: Sequence[dict[str, Any]], template: ChatTemplate, model: str, *, tools: bool) -> None:
    """Raise a 400 for calls, and results of tools, that the chat template would leave out of the prompt."""
    given = {"tool_calls": any("tool_calls" in one for one in messages)}
    given["the role tool"] = any(one["role"] == "tool" for one in messages)
    if not any(given.values()):
        return
    for name in template.of([1] if tools else ()).unprinted(tools=tools):
        if given[name]:
            offered = not tools and name not in template.of([1]).unprinted(tools=True)
            remedy = "send tools, too" if offered else f"give {model} another chat template, or leave {name} out"
            without = " without tools" if offered else ""
            why = f"messages have {name}, which the chat template of {model} does not print{without}; {remedy}"
            raise bad_request(why, "messages", "unprinted_history")


class ChatShape(AnswerShape):
    """The form of a chat's answer. A choice's role and its first text are sent in one write."""

    prefix = "chatcmpl"

    _tail = '},"logprobs":null,"finish_reason":null}]'

    def __init__(self, call: GenerateHandler) -> None:
        super().__init__(call)
        self._prompt = [("prompt_token_ids", tokens) for tokens in call.prompts if call.options.return_token_ids]
        both = call.front.settings.requests.reasoning_content
        self._reasoning = ("reasoning", "reasoning_content")[: 1 + both]  # the names that thinking has

    def chunk(self, kind: str = "chat.completion.chunk") -> dict[str, Any]:
        return {"object": kind, "id": self._call.id, **self._top}

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        if not piece.text and not piece.finish and self._plain:
            return b""
        events = ""
        if not choice.started:
            choice.started = True
            events = self._event(choice, {"role": "assistant", "content": ""}, extra=dict(self._prompt))
        if choice.reader is not None:
            deltas = [self._written(choice, delta) for delta in piece.deltas] or (
                [{"content": ""}] if piece.tokens and not self._plain else []
            )
            for n, fields in enumerate(deltas):
                events += self._event(choice, fields, piece if n == 0 else None)
        elif self._plain:
            if piece.text:
                content = quote(piece.text)
                made = f'{{"index":{choice.index},"delta":{{"content":{content}{self._tail}'
                events += f"{self._head}{made}{self._usage}}}\n\n"
        elif piece.text or piece.tokens:
            events += self._event(choice, {"content": piece.text}, piece)
        if piece.finish:
            events += self._event(choice, {}, finish=_finish(choice, piece), stop_reason=piece.stop_reason)
        return events.encode()

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        choices = []
        for choice, piece in zip(self._call.choices, pieces, strict=True):
            message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
            if choice.reader is not None:
                message |= self._message(choice, piece.deltas)
            made = {
                "index": choice.index,
                "message": message,
                "finish_reason": _finish(choice, piece),
                "stop_reason": piece.stop_reason,
            }
            choices.append(made | self._news(piece))
        made = {**self.chunk("chat.completion"), "choices": choices, "usage": self._call.usage(), **dict(self._prompt)}
        k = self._call.options.prompt_scored
        if k >= 0:
            first = self._call.choices[0]
            made["prompt_logprobs"] = prompt_logprobs(self._call.served.codec, first.prompt, first.prompt_logprobs, k)
        return made

    def _news(self, piece: TextPiece) -> dict[str, Any]:
        options = self._call.options
        made: dict[str, Any] = {"logprobs": None}
        if options.scored >= 0:
            made["logprobs"] = chat_logprobs(self._call.served.codec, piece)
        if options.return_token_ids:
            made["token_ids"] = piece.tokens
        return made

    def _written(self, choice: ChoiceText, delta: TurnDelta) -> dict[str, Any]:
        """Return an addition to a turn as a stream has it."""
        if (call := delta.call) is None:
            return dict.fromkeys(self._reasoning, delta.reasoning) if delta.reasoning else {"content": delta.content}
        function = {"arguments": call.arguments}
        if not call.name:
            return {"tool_calls": [{"index": call.index, "function": function}]}
        id = call_id(self._call.id, choice.index, call.index)
        made = {"index": call.index, "id": id, "type": "function", "function": {"name": call.name, **function}}
        return {"tool_calls": [made]}

    def _message(self, choice: ChoiceText, deltas: Sequence[TurnDelta]) -> dict[str, Any]:
        """Return the parts of a whole turn as a message has them."""
        reasoning, content = ("".join(getattr(one, part) for one in deltas) for part in ("reasoning", "content"))
        calls: list[dict[str, Any]] = []
        for piece in (delta.call for delta in deltas if delta.call is not None):
            if piece.name:
                id = call_id(self._call.id, choice.index, len(calls))
                calls.append({"id": id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
            calls[piece.index]["function"]["arguments"] += piece.arguments
        made: dict[str, Any] = {"content": None if calls and not content else content}
        return (
            made
            | (dict.fromkeys(self._reasoning, reasoning) if reasoning else {})
            | ({"tool_calls": calls} if calls else {})
        )

    def _event(
        self,
        choice: ChoiceText,
        delta: dict[str, Any],
        piece: TextPiece | None = None,
        *,
        finish: str | None = None,
        stop_reason: str | int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> str:
        made: dict[str, Any] = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if finish is not None:
            made["stop_reason"] = stop_reason
        if piece is not None:
            made |= self._news(piece)
        more = "".join(f',"{name}":{json.dumps(value)}' for name, value in (extra or {}).items())
        return f"{self._head}{json.dumps(made)}]{more}{self.usage_now()}}}\n\n"


def call_id(request: str, choice: int, number: int) -> str:
    """Return the id of a tool call of a choice, which follows from the request's: an answer that goes on has the same."""
    value = int.from_bytes(blake2b(f"{request}/{choice}/{number}".encode(), digest_size=16).digest(), "big")
    return "".join(_LETTERS[value // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID))


def _finish(choice: ChoiceText, piece: TextPiece) -> str:
    """Return why a choice ended. Calls of which a stop string cut the last are none to make."""
    called = choice.reader is not None and choice.reader.called and not choice.reader.cut_call
    return "tool_calls" if called and piece.finish == "stop" else piece.finish


CHAT = GeneratingEndpoint(path="/v1/chat/completions", parse=parse_chat, prompts=chat_prompts, shape=ChatShape)

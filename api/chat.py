"""``POST /v1/chat/completions``: the assistant's next message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from aiohttp import web

from blockwright.api.choice import Choice, Piece
from blockwright.api.errors import bad_request
from blockwright.api.front import CALLER, FRONT, IGNORED
from blockwright.api.generate import Call, answer, start
from blockwright.api.logprobs import chat_logprobs
from blockwright.api.openai_schema import parse_chat
from blockwright.api.request_body import read_body
from blockwright.api.version import FINGERPRINT


async def chat_completions(request: web.Request) -> web.StreamResponse:
    front = request.app[FRONT]
    body = parse_chat(await read_body(request), front.settings.unknown_fields)
    request[IGNORED] = body.options.ignored
    info = front.catalog.info(body.options.model)
    front.door.check_model(request[CALLER], info.id)
    served = await front.catalog.load(info)
    if served.template is None:
        raise bad_request(
            f"{info.id} has no chat template (chat_template.jinja, or chat_template of tokenizer_config.json); "
            "use /v1/completions, or add one to the checkpoint",
            "messages",
            "no_chat_template",
        )
    text = served.template.render(body.messages)
    tokens = await front.catalog.encode(served, text, special=False)  # the template writes BOS itself
    call = await start(
        front,
        request,
        prefix="chatcmpl",
        info=info,
        served=served,
        options=body.options,
        prompts=[tokens],
        default_tokens=None,
        continues=False,
    )
    return await answer(front, request, call, ChatShape(call))


class ChatShape:
    """The constant parts of a chunk are made once. A choice's role comes in one write with its first news."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._top = {
            "id": call.id,
            "created": call.created,
            "model": call.info.id,
            "system_fingerprint": FINGERPRINT,
        }
        options = call.options
        constant = json.dumps({"object": "chat.completion.chunk", **self._top}, separators=(",", ":"))[:-1]
        self._prompt = [("prompt_token_ids", tokens) for tokens in call.prompts if options.return_token_ids]
        self._head = f'data: {constant},"choices":['
        self._usage = ',"usage":null' if options.include_usage else ""
        self._plain = not (options.return_token_ids or options.continuous_usage or options.logprobs >= 0)
        self._tail = '},"logprobs":null,"finish_reason":null}]' + self._usage + "}\n\n"

    def events(self, choice: Choice, piece: Piece) -> bytes:
        if not piece.text and not piece.finish and self._plain:
            return b""
        events = ""
        if not choice.started:
            choice.started = True
            events = self._event(choice, {"role": "assistant", "content": ""}, extra=dict(self._prompt))
        if self._plain:
            if piece.text:
                events += f'{self._head}{{"index":{choice.index},"delta":{{"content":{quote(piece.text)}{self._tail}'
        elif piece.text or piece.tokens:
            events += self._event(choice, {"content": piece.text}, piece)
        if piece.finish:
            events += self._event(choice, {}, finish=piece.finish, stop_reason=piece.stop_reason)
        return events.encode()

    def usage_event(self) -> bytes:
        return f'{self._head}],"usage":{json.dumps(self._call.usage())}}}\n\n'.encode()

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = []
        for choice, piece in zip(self._call.choices, pieces, strict=True):
            message = {"role": "assistant", "content": piece.text, "refusal": None}
            made = {
                "index": choice.index,
                "message": message,
                "finish_reason": piece.finish,
                "stop_reason": piece.stop_reason,
            }
            choices.append(made | self._news(piece))
        top = {"object": "chat.completion", **self._top}
        return {**top, "choices": choices, "usage": self._call.usage(), **dict(self._prompt)}

    def _news(self, piece: Piece) -> dict[str, Any]:
        options = self._call.options
        made: dict[str, Any] = {"logprobs": None}
        if options.logprobs >= 0:
            made["logprobs"] = chat_logprobs(self._call.served.codec, piece)
        if options.return_token_ids:
            made["token_ids"] = piece.tokens
        return made

    def _event(
        self,
        choice: Choice,
        delta: dict[str, Any],
        piece: Piece | None = None,
        *,
        finish: str | None = None,
        stop_reason: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> str:
        made: dict[str, Any] = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if finish is not None:
            made["stop_reason"] = stop_reason
        if piece is not None:
            made |= self._news(piece)
        more = "".join(f',"{name}":{json.dumps(value)}' for name, value in (extra or {}).items())
        usage = f',"usage":{json.dumps(self._call.usage())}' if self._call.options.continuous_usage else self._usage
        return f"{self._head}{json.dumps(made)}]{more}{usage}}}\n\n"

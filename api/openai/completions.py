"""``POST /v1/completions``: text that continues a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from aiohttp import web

from blockwright.api.http.catalog import ServedModel
from blockwright.api.http.context import FRONT, IGNORED
from blockwright.api.openai.bodies import parse_completion
from blockwright.api.openai.choice import Choice, Echo, Piece, make_echo
from blockwright.api.openai.fields import Options
from blockwright.api.openai.generate import Call, answer, start, truncated
from blockwright.api.openai.logprobs import completion_logprobs, prompt_logprobs
from blockwright.api.openai.request_body import read_body
from blockwright.api.version import FINGERPRINT

DEFAULT_TOKENS = 16  # OpenAI's


async def completions(request: web.Request) -> web.StreamResponse:
    front = request.app[FRONT]
    body = await read_body(request, partial(parse_completion, unknown=front.settings.unknown_fields))
    request[IGNORED] = body.options.ignored
    info = front.model(request, body.options.model)
    served = await front.catalog.load(info)
    options, prompts = body.options, []
    for prompt in body.prompts:
        ids = prompt
        if isinstance(ids, str):
            ids = await front.catalog.encode(served, ids, special=options.add_special_tokens)
        prompts.append(truncated(ids, options, info))
    echoes = [_echo(served, p, tokens, options) for p, tokens in zip(body.prompts, prompts, strict=True) if options.echo]
    call = await start(
        front,
        request,
        prefix="cmpl",
        info=info,
        served=served,
        options=options,
        prompts=prompts,
        default_tokens=DEFAULT_TOKENS,
        continues=True,
        echoes=echoes,
    )
    return await answer(front, request, call, CompletionShape(call))


def _echo(served: ServedModel, prompt: str | list[int], tokens: list[int], options: Options) -> Echo:
    """A text as it was sent, unless its beginning was cut off; else what the tokens say."""
    special = not options.skip_special_tokens
    whole = isinstance(prompt, str) and options.truncate_prompt_tokens is None
    text = str(prompt) if whole else served.codec.decode(tokens, special=special)
    return make_echo(text, tokens, served.codec.detokenizer(special=special))


class CompletionShape:
    """The constant parts of a chunk are made once; a plain text chunk is one concatenation."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._top = {
            "id": call.id,
            "object": "text_completion",
            "created": call.created,
            "model": call.info.id,
            "system_fingerprint": FINGERPRINT,
            **({"service_tier": call.options.tier} if call.options.tier else {}),
        }
        options = call.options
        self._head = "data: " + json.dumps(self._top, separators=(",", ":"))[:-1] + ',"choices":['
        self._usage = ',"usage":null' if options.include_usage else ""
        self._plain = not (options.return_token_ids or options.continuous_usage or options.scored >= 0)
        self._tail = ',"logprobs":null,"finish_reason":null,"stop_reason":null}]' + self._usage + "}\n\n"

    def events(self, choice: Choice, piece: Piece) -> bytes:
        if self._plain and not piece.finish:
            if not piece.text:
                return b""
            return f'{self._head}{{"index":{choice.index},"text":{quote(piece.text)}{self._tail}'.encode()
        one = json.dumps(self._choice(choice, piece, first=not choice.started))
        choice.started = True
        usage = f',"usage":{json.dumps(self._call.usage())}' if self._call.options.continuous_usage else self._usage
        return f"{self._head}{one}]{usage}}}\n\n".encode()

    def usage_event(self) -> bytes:
        return f'{self._head}],"usage":{json.dumps(self._call.usage())}}}\n\n'.encode()

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [self._choice(choice, piece, first=True) for choice, piece in zip(self._call.choices, pieces, strict=True)]
        return {**self._top, "choices": choices, "usage": self._call.usage()}

    def _choice(self, choice: Choice, piece: Piece, *, first: bool) -> dict[str, Any]:
        options = self._call.options
        made: dict[str, Any] = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": completion_logprobs(self._call.served.codec, piece) if options.scored >= 0 else None,
            "finish_reason": piece.finish or None,
            "stop_reason": piece.stop_reason,
        }
        if options.prompt_scored >= 0:
            codec = self._call.served.codec
            made["prompt_logprobs"] = prompt_logprobs(codec, choice.prompt, choice.prompt_logprobs, options.prompt_scored)
        if options.return_token_ids:
            made["token_ids"] = piece.tokens
            if first:
                made["prompt_token_ids"] = choice.prompt
        return made

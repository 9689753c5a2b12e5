"""``POST /tokenize`` and ``POST /detokenize``: texts, conversations and token ids, converted by the models' tokenizers.

The answers equal the results of the checkpoint's own tokenizer in transformers. Long texts are tokenized on a thread.
"""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web

from ..answers import DetokenizeAnswer, TokenizeAnswer
from ..checks import shown
from ..errors import bad_request
from ..http.context import FRONT, IGNORED
from .bodies import Messages, read_fields, template_options
from .chat import render
from .field_types import Field, Flag, Text, Tokens
from .fields import TEMPLATE
from .foreign_fields import DETOKENIZING, TOKENIZING
from .json_pieces import written
from .refused_fields import ForeignFields
from .request_body import read_body
from .tools import Tools

_MODEL = Field("model", Text(), "A model id from /v1/models; default: the one that is marked there.")
TOKENIZE_FIELDS = (
    _MODEL,
    Field("prompt", Text(), "A text; either this or messages."),
    Field("messages", Messages(), "A conversation; either this or prompt."),
    Field(
        "add_special_tokens", Flag(), "Let the tokenizer add special tokens; default: true for a prompt, false for messages."
    ),
    Field("tools", Tools(), "Functions that the chat template prints; only with messages."),
    Field("return_token_strs", Flag(), "Also return the tokens as they are in the vocabulary.", default=False),
    *TEMPLATE,
)
_MANY = 1 << 14  # token ids; looking up and writing this number takes about 10 ms
DETOKENIZE_FIELDS = (_MODEL, Field("tokens", Tokens(), "Token ids.", required=True))
FOREIGN_TO_TOKENIZE = ForeignFields(TOKENIZING, TOKENIZE_FIELDS)
FOREIGN_TO_DETOKENIZE = ForeignFields(DETOKENIZING, DETOKENIZE_FIELDS)


async def tokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    check = partial(
        read_fields, fields=TOKENIZE_FIELDS, unknown=front.settings.requests.unknown_fields, foreign=FOREIGN_TO_TOKENIZE
    )
    values, request[IGNORED] = await read_body(request, check)
    if ("prompt" in values) == ("messages" in values):
        raise bad_request("give either prompt or messages", "prompt")
    if values.get("tools") and "prompt" in values:
        raise bad_request("tools are for messages; leave them out beside prompt", "tools")
    info = await front.find(request, values.get("model"))
    served = await front.catalog.load(info)
    if "messages" in values:
        tools = [tool.given for tool in values.get("tools", ())]
        text = await render(front, info, served, values["messages"], template_options(values), tools)
    else:
        text = values["prompt"]
    tokens = await front.catalog.encode(served, text, special=values.get("add_special_tokens", "prompt" in values))

    def answered() -> str:
        names = [served.codec.token_text(token) for token in tokens] if values.get("return_token_strs") else None
        answer: TokenizeAnswer = {
            "count": len(tokens),
            "max_model_len": info.max_length,
            "tokens": tokens,
            "token_strs": names,
        }
        return written(answer)

    body = answered() if len(tokens) < _MANY else await asyncio.to_thread(answered)
    return web.json_response(text=body)


async def detokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    check = partial(
        read_fields, fields=DETOKENIZE_FIELDS, unknown=front.settings.requests.unknown_fields, foreign=FOREIGN_TO_DETOKENIZE
    )
    values, request[IGNORED] = await read_body(request, check)
    info = await front.find(request, values.get("model"))
    served = await front.catalog.load(info)
    if served.codec.missing:
        raise bad_request(served.codec.missing, "tokens")
    bad = next((token for token in values["tokens"] if not 0 <= token < served.vocabulary), None)
    if bad is not None:
        message = f"token id {shown(bad)} is not in the vocabulary; give ids from 0 to {served.vocabulary - 1}"
        raise bad_request(message, "tokens")
    decode = partial(served.codec.decode, values["tokens"], special=True)
    answer: DetokenizeAnswer = {"prompt": decode() if len(values["tokens"]) < _MANY else await asyncio.to_thread(decode)}
    return web.json_response(answer)

"""``POST /tokenize`` and ``POST /detokenize``: what the served models make of texts, conversations and ids.

The answers equal those of the checkpoint's own tokenizer in transformers. Long texts are tokenized on a thread.
"""

from __future__ import annotations

from aiohttp import web

from blockwright.api.answers import DetokenizeAnswer, TokenizeAnswer
from blockwright.api.chat import render
from blockwright.api.checks import shown
from blockwright.api.errors import bad_request
from blockwright.api.fields import TEMPLATE
from blockwright.api.front import CALLER, FRONT, IGNORED
from blockwright.api.kinds import Field, Flag, Text, Tokens
from blockwright.api.openai_schema import Messages, read_fields, template_options
from blockwright.api.request_body import read_body

_MODEL = Field("model", Text(), "A model id of /v1/models; the first one when missing.")
TOKENIZE_FIELDS = (
    _MODEL,
    Field("prompt", Text(), "A text; this or messages."),
    Field("messages", Messages(), "A conversation; this or prompt."),
    Field("add_special_tokens", Flag(), "Let the tokenizer add its own; default true for a prompt, false for messages."),
    Field("return_token_strs", Flag(), "Also the tokens as the vocabulary writes them.", default=False),
    *TEMPLATE,
)
DETOKENIZE_FIELDS = (_MODEL, Field("tokens", Tokens(), "Token ids.", required=True))


async def tokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    values, request[IGNORED] = read_fields(await read_body(request), TOKENIZE_FIELDS, front.settings.unknown_fields)
    if ("prompt" in values) == ("messages" in values):
        raise bad_request("give either prompt or messages", "prompt")
    info = front.catalog.info(values.get("model"))
    front.door.check_model(request[CALLER], info.id)
    served = await front.catalog.load(info)
    if "messages" in values:
        text = await render(front, info.id, served, values["messages"], template_options(values))
    else:
        text = values["prompt"]
    tokens = await front.catalog.encode(served, text, special=values.get("add_special_tokens", "prompt" in values))
    names = [served.codec.token_text(token) for token in tokens] if values.get("return_token_strs") else None
    answer: TokenizeAnswer = {
        "count": len(tokens),
        "max_model_len": info.max_length,
        "tokens": tokens,
        "token_strs": names,
    }
    return web.json_response(answer)


async def detokenize(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    values, request[IGNORED] = read_fields(await read_body(request), DETOKENIZE_FIELDS, front.settings.unknown_fields)
    info = front.catalog.info(values.get("model"))
    front.door.check_model(request[CALLER], info.id)
    served = await front.catalog.load(info)
    if served.codec.missing:
        raise bad_request(served.codec.missing, "tokens")
    bad = next((token for token in values["tokens"] if not 0 <= token < served.vocabulary), None)
    if bad is not None:
        message = f"token id {shown(bad)} is not in the vocabulary; give ids from 0 to {served.vocabulary - 1}"
        raise bad_request(message, "tokens")
    answer: DetokenizeAnswer = {"prompt": served.codec.decode(values["tokens"], special=True)}
    return web.json_response(answer)

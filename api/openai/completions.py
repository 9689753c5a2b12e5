"""``POST /v1/completions``: text that continues a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from .bodies import CompletionBody, parse_completion
from .choice import ChoiceText, Echo, TextPiece, decoded_echo
from .fields import CompletionOptions
from .generate import AnswerShape, GenerateHandler, GeneratingEndpoint
from .json_pieces import written
from .logprobs import completion_logprobs, prompt_logprobs

_MANY = 1024  # tokens of all prompts; to decode many one by one takes some milliseconds


async def _prompts(call: GenerateHandler, body: CompletionBody) -> None:
    call.prompts = [await call.tokens(prompt, special=body.options.add_special_tokens) for prompt in body.prompts]
    # a prompt that does not fit is refused later; the offsets of its tokens could take seconds
    fit = all(len(tokens) < call.info.max_length for tokens in call.prompts)
    pairs = zip(body.prompts, call.prompts, strict=True) if body.options.echo and fit else ()
    call.echoes = [await _echo(call, prompt, tokens, body.options) for prompt, tokens in pairs]
    call.continues = True


async def _echo(call: GenerateHandler, prompt: str | list[int], tokens: list[int], options: CompletionOptions) -> Echo:
    """Return the echo: a text as it was sent, or the decoded tokens if the prompt is tokens or was truncated."""
    if not isinstance(prompt, str) or options.truncate_prompt_tokens is not None:
        decoded = partial(decoded_echo, call.served.codec, tokens, special=not options.skip_special_tokens)
        return decoded() if sum(map(len, call.prompts)) < _MANY else await call.front.run_in_thread(decoded)
    if options.scored < 0:
        return Echo(prompt, [])
    return Echo(prompt, await call.front.catalog.offsets(call.served, prompt, special=options.add_special_tokens))


class CompletionShape(AnswerShape):
    """The form of a completion's answer. A plain text chunk costs one concatenation."""

    prefix = "cmpl"
    default_tokens = 16  # OpenAI's default

    _tail = ',"logprobs":null,"finish_reason":null,"stop_reason":null}]'

    def chunk(self) -> dict[str, Any]:
        return {"id": self._call.id, "object": "text_completion", **self._top}

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        if self._plain and not piece.finish:
            if not piece.text:
                return b""
            return f'{self._head}{{"index":{choice.index},"text":{quote(piece.text)}{self._tail}{self._usage}}}\n\n'.encode()
        one = written(self._choice(choice, piece, first=not choice.started))
        choice.started = True
        return f"{self._head}{one}]{self.usage_now()}}}\n\n".encode()

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        choices = [self._choice(choice, piece, first=True) for choice, piece in zip(self._call.choices, pieces, strict=True)]
        return {**self.chunk(), "choices": choices, "usage": self._call.usage()}

    def _choice(self, choice: ChoiceText, piece: TextPiece, *, first: bool) -> dict[str, Any]:
        options = self._call.options
        codec, scored = self._call.served.codec, options.scored >= 0
        made: dict[str, Any] = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": completion_logprobs(codec, piece, options.scored) if scored else None,
            "finish_reason": piece.finish or None,
            "stop_reason": piece.stop_reason,
        }
        if options.prompt_scored >= 0:
            made["prompt_logprobs"] = prompt_logprobs(codec, choice.prompt, choice.prompt_logprobs, options.prompt_scored)
        if options.return_token_ids:
            made["token_ids"] = piece.tokens
            if first:
                made["prompt_token_ids"] = choice.prompt
        return made


COMPLETIONS = GeneratingEndpoint(path="/v1/completions", parse=parse_completion, prompts=_prompts, shape=CompletionShape)

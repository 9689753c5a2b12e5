"""``POST /v1/responses``: the answer of the inner chat as a response, whole or as typed events.

A stream begins with ``response.created`` and ends with ``response.completed``, ``incomplete`` or ``failed``.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ...errors import ApiError
from ...http.context import IGNORED
from ..bodies import ChatBody
from ..chat import chat_prompts
from ..choice import ChoiceText, TextPiece
from ..generate import AnswerShape, GenerateHandler, GeneratingEndpoint
from ..logprobs import chat_logprobs
from .output import COMPLETED, IN_PROGRESS, INCOMPLETE, EventSequence, Output
from .request import ResponseOptions, parse_response

FAILED = "failed"
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # of a failure, by status; others: server_error


async def _prompts(call: GenerateHandler, body: ChatBody) -> None:
    """Fill in the prompt of the inner chat. The oldest items are left out if the request wants it and all do not fit."""
    messages = body.messages
    if call.served.template is not None and "developer" not in call.served.template.source:
        as_system = {"developer": "system"}  # the template does not know the newer name
        messages = [{**one, "role": as_system.get(one["role"], one["role"])} for one in messages]
    await _chat_prompts(call, replace(body, messages=messages))
    options = call.options
    assert isinstance(options, ResponseOptions)
    if not options.truncates or _fits(call):
        return
    lead = next((i for i, one in enumerate(messages) if one["role"] != "system"), 0)
    turns = [i for i in range(lead + 1, len(messages)) if messages[i]["role"] == "user"]
    others = [i for i in range(lead + 1, len(messages)) if messages[i]["role"] != "tool"]  # a result needs its call
    for starts in (turns, others):
        await _shorten(call, body, messages, lead, starts)
        if _fits(call):
            return


async def _shorten(
    call: GenerateHandler, body: ChatBody, messages: list[dict[str, Any]], lead: int, starts: list[int]
) -> None:
    """Fill in the prompt behind ``lead`` messages from the first start on from which all fits; else from the last one on."""
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        await _chat_prompts(call, replace(body, messages=[*messages[:lead], *messages[starts[middle] :]]))
        if low == high:
            return
        low, high = (low, middle) if _fits(call) else (middle + 1, high)


def _fits(call: GenerateHandler) -> bool:
    return len(call.prompts[0]) + (call.options.limit or 1) <= call.info.max_length


async def _chat_prompts(call: GenerateHandler, body: ChatBody) -> None:
    try:
        await chat_prompts(call, body)
    except ApiError as error:
        error.param = "input" if error.param == "messages" else error.param
        raise
    names = {"reasoning_effort": "reasoning.effort"}
    call.request[IGNORED] = tuple(names.get(name, name) for name in call.request[IGNORED])


class ResponseShape(AnswerShape):
    """The form of a response. Events that many tokens have cost a few concatenations."""

    prefix = "resp"

    def __init__(self, call: GenerateHandler) -> None:
        super().__init__(call)
        options = call.options
        assert isinstance(options, ResponseOptions)
        self._log = EventSequence(quiet=not options.stream)
        stem = call.id.partition("-")[2]
        self._output = Output(stem, options.custom, self._log, summarised=options.summarised, seals=options.seals)
        self._finish = ""
        self._begun = False
        self._scored = options.scored >= 0
        # tokens that are in no text yet: where their text begins in the answer, and the JSON of their log-probabilities
        self._waiting: list[tuple[int, str]] = []
        more = {
            "service_tier": options.tier,
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
        }
        self._repeated = f"{json.dumps(more, separators=(',', ':'))[1:-1]},{options.repeated}"

    def chunk(self) -> dict[str, Any]:
        return {"id": self._call.id, "object": "response", "created_at": self._call.created, "model": self._top["model"]}

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        self._begin()
        self._take(choice, piece)
        return self._log.take()

    def body(self, pieces: Sequence[TextPiece]) -> str:
        (choice,), (piece,) = self._call.choices, pieces
        self._take(choice, piece)
        return self._written(self._status)

    def end(self) -> bytes:
        self._add(self._status)
        return self._log.take()

    def failure(self, error: ApiError) -> bytes:
        self._begin()
        members = {"code": error.code, "message": error.message, "param": error.param}
        self._log.add("error", json.dumps(members)[1:-1])
        self._add(FAILED, error)
        return self._log.take()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._log.add("response.created", f'"response":{self._written(IN_PROGRESS)}')
            self._log.add("response.in_progress", f'"response":{self._written(IN_PROGRESS)}')

    @property
    def _status(self) -> str:
        return COMPLETED if self._finish == "stop" else INCOMPLETE

    def _add(self, status: str, error: ApiError | None = None) -> None:
        self._log.add(f"response.{status}", f'"response":{self._written(status, error)}')

    def _take(self, choice: ChoiceText, piece: TextPiece) -> None:
        """Add a piece to the output."""
        if self._scored:
            scores = chat_logprobs(self._call.served.codec, piece)["content"]
            self._waiting += zip(piece.offsets, map(json.dumps, scores), strict=True)
        if choice.reader is None and piece.text:
            self._output.write(piece.text, self._rest())
        for delta in piece.deltas:
            if delta.call is not None:
                self._output.call(delta.call)
            elif delta.reasoning:
                self._output.reason(delta.reasoning)
            else:
                self._output.write(delta.content, self._scores(delta.end - len(delta.content), delta.end))
        if piece.finish:
            if self._waiting and self._output.writing:
                self._output.write("", self._rest())  # of the end token, which has no text
            self._finish = piece.finish
            self._output.finish(self._status)

    def _scores(self, begin: int, end: int) -> list[str]:
        """Take the log-probabilities of the tokens that have a part of a text; those before it are in none.

        The last token that begins before the text is one of them if it does not end there.
        """
        waiting = self._waiting
        first = bisect_left(waiting, begin, key=itemgetter(0))
        reaches = first > 0 and (first == len(waiting) or waiting[first][0] > begin)
        last = bisect_left(waiting, end, key=itemgetter(0))
        self._waiting = waiting[last:]
        return [score for _, score in waiting[first - reaches : last]]

    def _rest(self) -> list[str]:
        """Take the log-probabilities of all tokens that wait."""
        waiting, self._waiting = self._waiting, []
        return [score for _, score in waiting]

    def _written(self, status: str, error: ApiError | None = None) -> str:
        """Return the response as it stands, as JSON."""
        failed = None
        if error is not None:
            failed = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        ended = status not in (IN_PROGRESS, FAILED)
        made = {
            **self.chunk(),
            "status": status,
            "completed_at": int(time.time()) if status == COMPLETED else None,
            "error": failed,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "usage": self._usage_shown() if ended else None,
        }
        return f'{json.dumps(made, separators=(",", ":"))[:-1]},"output":{self._output.items()},{self._repeated}}}'

    def _usage_shown(self) -> dict[str, Any]:
        usage = self._call.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        made: dict[str, Any] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": usage["prompt_tokens"] - cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"].get("reasoning_tokens", 0)},
            "total_tokens": usage["total_tokens"],
        }
        return made | ({"tier": usage["tier"]} if "tier" in usage else {})


RESPONSES = GeneratingEndpoint(path="/v1/responses", parse=parse_response, prompts=_prompts, shape=ResponseShape)

"""Results of generation: answers, streamed pieces, and the one error.

Plain values, the same from a remote server and from an embedded cluster. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class RequestError(Exception):
    """A refused or failed request. ``status``: HTTP's, or 0 without an answer. ``param``: the name of the field."""

    def __init__(self, status: int, message: str, *, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` sequences that answer a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None  # "stop", "length" or "tool_calls"
    stop_reason: str | int | None = None  # the stop string or token that ended it
    logprobs: Mapping[str, Any] | None = None  # log-probabilities as in the API, if requested
    reasoning: str = ""  # of a chat, if the model's turn template tells it apart
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # as in the API


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``text``, ``token_ids`` and ``finish_reason`` belong to the first choice."""

    id: str  # id for the server's explanation
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int  # tokens of all choices

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Piece:
    """The addition of one stream event to choice ``index``. The last piece of a choice has a ``finish_reason``."""

    text: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # pieces of calls, as in the API

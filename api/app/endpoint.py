"""The record of an endpoint: its handler, and its text in the reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .. import answers
from ..http import health
from ..openai.field_types import Field

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint.

    ``path``: in aiohttp's form. ``errors``: statuses with an ``error``, besides 401 if a key is needed.
    """

    method: str
    path: str
    handler: Handler
    text: str
    fields: tuple[Field, ...] = ()  # fields of the body
    takes: str = "application/json"  # media type of the body
    query: tuple[Field, ...] = ()  # parameters of the query
    answer: Any = None  # type of a success's JSON; None: see ``media``
    chunk: Any = None  # type of a stream's events
    stream: str = "data: lines, each with a chunk; the last is [DONE]."
    error: Any = answers.ErrorAnswer  # type of an error's JSON
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    success: int = 200
    also: tuple[int, ...] = ()  # further statuses with the form of the success

    @property
    def public(self) -> bool:
        return self.path in health.PUBLIC

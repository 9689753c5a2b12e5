"""Turns a conversation into the text of a prompt, as transformers' ``apply_chat_template`` does.

Templates run in jinja2's immutable sandbox. That bounds what they can reach, not how long they take: those that nobody chose
run in a process apart (``template_process.py``), which is why this imports nothing but jinja2. Never tokenizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where the last message ends, as transformers does it


@dataclass(frozen=True, slots=True)
class Rendering:
    """How messages become a prompt: up to where the assistant speaks (``begin``), or to the end of the last message's text
    (``proceed``). ``variables``: further names for the template; ``longest``: characters of the prompt."""

    begin: bool
    proceed: bool
    variables: Mapping[str, Any]
    longest: int


class TemplateFault(Exception):
    """The template cannot make a prompt of these messages: one sentence, and the field of a request that it is about."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message, self.param = message, param


class _Generation(Extension):
    """``{% generation %}`` marks what a model said, for training; here its body is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class Engine:
    """A compiled template; ``named`` are the checkpoint's special tokens, which templates refer to by role.

    field: of a request, where the template stands in one; a fault names it.
    """

    def __init__(self, source: str, named: Mapping[str, str], field: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._named, self._field = named, field
        self._broken = ""
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # jinja2 computes what is constant
            self._broken = f"{type(error).__name__}: {error}"  # completions work without; chat says why it does not

    def render(self, messages: Sequence[Mapping[str, Any]], how: Rendering) -> str:
        """The prompt. Raises TemplateFault with the template's own words, and MemoryError."""
        blamed = self._field or "messages"
        if self._broken:
            raise TemplateFault(f"the chat template does not compile ({self._broken}); use /v1/completions", blamed)
        given = list(messages)
        if how.proceed:
            given[-1] = {**given[-1], "content": given[-1]["content"] + _TAG}
        names = {**self._named, **how.variables}
        try:
            text = self._template.render(
                messages=given, tools=None, documents=None, add_generation_prompt=how.begin, **names
            )
        except MemoryError:
            raise
        except Exception as error:  # a template can raise anything when messages are not what it expects
            message = f"the chat template refuses these messages: {error}; change their roles or order"
            raise TemplateFault(message, "messages") from None
        text = _cut(text) if how.proceed else text
        if len(text) > how.longest:  # a loop can make of a short body what no tokenizer's memory holds
            made = f"the chat template makes {len(text)} characters of these messages, more than max_body ({how.longest})"
            raise TemplateFault(f"{made}; send less", blamed)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TemplateFault("the chat template prints a lone surrogate; print valid Unicode", blamed) from None
        return text


def _cut(text: str) -> str:
    """The text before the tag; without the spaces there, if the template has stripped the message."""
    at = text.rfind(_TAG.strip())
    if at < 0:
        message = "the chat template does not print the last message; leave continue_final_message out"
        raise TemplateFault(message, "continue_final_message")
    return text[:at] if text[at : at + len(_TAG)] == _TAG else text[:at].rstrip()

"""Renders a conversation with the checkpoint's chat template, as transformers' ``apply_chat_template`` does.

Templates come with checkpoints, so they run in jinja2's immutable sandbox. Reads ``chat_template.jinja``, else
``chat_template`` of tokenizer_config.json. Never tokenizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blockwright.api.errors import bad_request
from blockwright.api.tokenizer import read_json

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where the last message ends, as transformers does it


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


class ChatTemplate:
    """A compiled template; ``named`` are the checkpoint's special tokens, which templates refer to by role."""

    def __init__(self, source: str, named: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._named = named
        self._broken = ""
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            self._broken = f"{type(error).__name__}: {error}"  # completions work without; chat says why it does not

    @classmethod
    def load(cls, folder: Path, named: dict[str, str]) -> ChatTemplate | None:
        """None where the checkpoint has no template."""
        file = folder / "chat_template.jinja"
        if file.is_file():
            return cls(file.read_text(encoding="utf-8"), named)
        source = read_json(folder, "tokenizer_config.json").get("chat_template")
        if isinstance(source, list):
            source = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}.get("default")
        return cls(source, named) if isinstance(source, str) else None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        begin: bool = True,
        proceed: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks (``begin``), or to the end of the last message's text (``proceed``).

        Raises a 400 with the template's own words.
        """
        if self._broken:
            raise bad_request(f"the chat template does not compile ({self._broken}); use /v1/completions")
        if proceed:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + _TAG}]
        names = {**self._named, **(variables or {})}
        try:
            text = self._template.render(messages=messages, tools=None, documents=None, add_generation_prompt=begin, **names)
        except Exception as error:  # a template can raise anything when messages are not what it expects
            message = f"the chat template refuses these messages: {error}; change their roles or order"
            raise bad_request(message, "messages", "template_error") from None
        return _cut(text) if proceed else text


def _cut(text: str) -> str:
    """The text before the tag; without the spaces there, if the template has stripped the message."""
    at = text.rfind(_TAG.strip())
    if at < 0:
        message = "the chat template does not print the last message; leave continue_final_message out"
        raise bad_request(message, "continue_final_message", "template_error")
    return text[:at] if text[at : at + len(_TAG)] == _TAG else text[:at].rstrip()

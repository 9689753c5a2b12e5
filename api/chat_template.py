"""Renders a conversation with the checkpoint's chat template, as transformers' ``apply_chat_template`` does.

Templates come with checkpoints, so they run in jinja2's immutable sandbox. Reads ``chat_template.jinja``, else
``chat_template`` of tokenizer_config.json. Never tokenizes.
"""

from __future__ import annotations

import json
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

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt, up to where the assistant speaks. Raises a 400 with the template's own words."""
        if self._broken:
            raise bad_request(f"the checkpoint's chat template does not compile ({self._broken}); use /v1/completions")
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._named
            )
        except Exception as error:  # a template can raise anything when messages are not what it expects
            message = f"the chat template refuses these messages: {error}; change their roles or order"
            raise bad_request(message, "messages", "template_error") from None

"""The grammar of a turn: thinking, then a text or tool calls, in the model's own format, as Lark with JSON inside.

It is made from the same template that the reader follows, so that what it allows the reader reads. A delimiter that is a
special token of the tokenizer is that token; others are texts, however they are cut into tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....policies.plan.grammar import JSON, JSON_OPTIONS
from .template import CALLS, THINKING, CallForm, Region, TurnError, TurnTemplate

NEVER = "never"
MAY, MUST = "may", "must"
_ANY = "(?s:.*)"
_BLANKS = r"[ \n]{0,3}"


@dataclass(frozen=True, slots=True)
class ToolRule:
    """A tool that may be called, and the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    """The limits of a turn. ``calls``: NEVER, MAY or MUST. ``many``: more than one.

    ``form`` and ``text``: the language of its text; an empty form allows any.
    """

    tools: Sequence[ToolRule] = ()
    calls: str = NEVER
    many: bool = True
    form: str = ""
    text: str = ""


def turn_grammar(
    template: TurnTemplate, rules: TurnRules, *, thinking: bool, settled: bool, special: Mapping[str, int]
) -> str:
    """Return the Lark grammar of what is left of a turn. Raise TurnError.

    ``thinking``: the prompt has opened it. ``settled``: the turn has begun otherwise. ``special``: the special tokens.
    """
    return _Maker(template, rules, special).made(thinking, settled)


class _Maker:
    """The rules of one grammar, as they are made."""

    def __init__(self, template: TurnTemplate, rules: TurnRules, special: Mapping[str, int]) -> None:
        self._template, self._rules = template, rules
        self._special = special
        self._names = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._lines: list[str] = []

    def made(self, thinking: bool, settled: bool) -> str:
        start = self._turn()
        thought = self._template.regions.get(THINKING)
        if thought is not None and (thinking or not settled):
            self._until("thought", thought.closes)
            opens = self._any(thought.opens)
            start = f"thought BLANKS ({start})" if thinking else f"({opens} thought BLANKS)? ({start})"
        lines = [f"start: {start}", *self._lines, f"BLANKS: /{_BLANKS}/"]
        return "\n".join(lines) + "\n"

    def _turn(self) -> str:
        """Return the expression of the turn behind its thinking."""
        region, rules = self._template.regions.get(CALLS), self._rules
        if rules.calls == NEVER:
            return self._text()
        if region is None or region.calls is None:
            raise TurnError("has no tool_calls")
        opens, calls = self._any(region.opens), self._calls(region, region.calls)
        if rules.calls == MUST:
            return f"BLANKS {opens} {calls}"
        text = self._text()
        if rules.form:
            return f"{text} | BLANKS {opens} {calls}"
        thought = self._template.regions.get(THINKING)
        self._until("before", region.opens, thought.opens if thought is not None else ())
        return f"{text} | before {calls}"

    def _text(self) -> str:
        """Return the expression of a text that is no call, and add its rule."""
        if self._rules.form == JSON:
            self._lines.append(f"text: %json {_schema(json.loads(self._rules.text))}")
            return "text"
        if self._rules.form:
            inner = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], self._rules.text, flags=re.DOTALL)
            inner = inner.replace("\n", r"\n")
            self._lines.append(f"TEXT: /{inner}/")
            return "TEXT"
        regions = [one for name, one in self._template.regions.items() if name in (CALLS, THINKING)]
        self._lines.append(f"FREE: /{_ANY}/{self._without([text for one in regions for text in one.opens])}")
        return "FREE"

    def _calls(self, region: Region, form: CallForm) -> str:
        """Return the expression of all calls behind the first text that opens them."""
        one = " | ".join(self._call(i, tool, form) for i, tool in enumerate(self._rules.tools))
        self._lines.append(f"call: {one}")
        closes = f"BLANKS {self._any(region.closes)}" if region.closes else ""
        if form.many:
            more = '("," call)*' if self._rules.many else ""
            return f'BLANKS "[" call {more} "]" {closes}'
        body = f"call {closes}"
        if not (self._rules.many and region.repeats and region.closes):
            return body
        return f"{body} (BLANKS {self._any(region.opens)} {body})*"

    def _call(self, index: int, tool: ToolRule, form: CallForm) -> str:
        name, key, arguments = (_literal(json.dumps(one)) for one in (tool.name, form.name, form.arguments))
        self._lines.append(f"HEAD{index}: /{_BLANKS}\\{{ ?{key}: ?{name}, ?{arguments}: ?/")
        self._lines.append(f"arguments{index}: %json {_schema(tool.schema)}")
        return f"HEAD{index} arguments{index} /{_BLANKS}\\}}/"

    def _until(self, name: str, texts: Sequence[str], others: Sequence[str] = ()) -> None:
        """Add a rule for any text up to the first of these, which ends it. ``others``: texts that do not come before."""
        plain = [_literal(text) for text in texts if not self._names.search(text)]
        found = [f"{name}_text"] if plain else []
        if plain:
            self._lines.append(f"{name.upper()}_END: /{_ANY}({'|'.join(plain)})/{self._without(others)}")
            self._lines.append(f"{name}_text[lazy]: {name.upper()}_END")
        without = self._without([*texts, *others])
        for n, text in enumerate(text for text in texts if self._names.search(text)):
            self._lines.append(f"{name.upper()}_{n}: /{_ANY}/{without}")
            found.append(f"{name.upper()}_{n} {self._exactly(text)}")
        self._lines.append(f"{name}: {' | '.join(found)}")

    def _without(self, texts: Sequence[str]) -> str:
        """Return the part of an expression that rules these texts out. A special token is in no text anyway."""
        plain = [_literal(text) for text in texts if not self._names.search(text)]
        return f" & ~/{_ANY}({'|'.join(plain)}){_ANY}/" if plain else ""

    def _any(self, texts: Sequence[str]) -> str:
        return "(" + " | ".join(map(self._exactly, texts)) + ")"

    def _exactly(self, text: str) -> str:
        """Return the expression of a delimiter."""
        parts, at = [], 0
        for found in self._names.finditer(text):
            parts += [json.dumps(text[at : found.start()])] if at < found.start() else []
            parts.append(f"<[{self._special[found[0]]}]>")
            at = found.end()
        if parts and not parts[0].startswith("<["):
            raise TurnError(f"has the delimiter {text[:60]!r} with a special token inside, which no grammar can have")
        return " ".join([*parts, *([json.dumps(text[at:])] if at < len(text) else [])])


def _schema(schema: Mapping[str, Any] | bool) -> str:
    """Return a schema with the library's options, which is an object for them."""
    return json.dumps({"x-guidance": JSON_OPTIONS, **(schema if isinstance(schema, Mapping) else {})})


def _literal(text: str) -> str:
    """Return the expression that matches this text alone."""
    return "".join(c if c.isalnum() and ord(c) < 0x80 else f"\\x{{{ord(c):X}}}" for c in text)

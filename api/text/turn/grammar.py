"""The grammar of a turn: thinking, then a text or tool calls, in the model's own format, as Lark with JSON inside.

It is made from the same template that the reader follows, so that what it allows the reader reads. A delimiter that is a
special token of the tokenizer is that token; others are texts, however they are cut into tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....policies.plan.grammar import JSON
from .call_forms import NAME, CallForm, JsonForm, NamedForm, PythonForm, TagForm, TurnError
from .lark_rules import ANY, LarkRules, literal
from .literal_grammar import LiteralGrammar
from .patterns import Blanks, Gap
from .tag_grammar import TagGrammar
from .template import CALLS, CONTENT, THINKING, TurnRegion, TurnTemplate

NEVER = "never"
MAY, MUST = "may", "must"
_PYTHON_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_BLANKS = r"[ \n]{0,3}"
_NO_BLANK = rf" & ~/[\s\x1C-\x1F]{ANY}/"  # blanks behind thinking are read as such, so no text begins with one there


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


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The Lark grammar of one call, or of a list of them, from the text on that is ahead in a template.

    ``lasts``: the call goes on until the turn ends. ``loose``: tools whose arguments may be any, as the form cannot hold
    their schemas. ``left_out``: tools whose names the form cannot write.
    """

    text: str
    lasts: bool
    loose: tuple[str, ...]
    left_out: tuple[str, ...]


def call_grammar(
    template: TurnTemplate, tools: Sequence[ToolRule], *, special: Mapping[str, int], ends: Container[str]
) -> CallGrammar:
    """Return the grammar of a call of one of the tools. Raise TurnError. ``ends``: the texts of the end tokens."""
    return _Maker(template, TurnRules(tools=tools, calls=MAY), special).one_call(ends)


def starts_of(template: TurnTemplate, names: Iterable[str]) -> list[str]:
    """Return the texts that are a call of one of these tools if a turn begins with one of them.

    Calls of Python begin like many a text, so they have a name.
    """
    region = template.regions[CALLS]
    if not region.starts:
        return []
    return [f"{region.ahead}{name}(" for name in names] if isinstance(region.calls, PythonForm) else [region.ahead]


def text_behind_thinking(expression: str) -> str:
    """Return the Lark grammar of the texts of an expression that may stand behind thinking."""
    return f"start: TEXT\nTEXT: {_expression(expression)}{_NO_BLANK}\n"


def _expression(text: str) -> str:
    """Return an expression as Lark has it."""
    inner = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], text, flags=re.DOTALL)
    return "/{}/".format(inner.replace("\n", r"\n"))


class _Maker:
    """The rules of one grammar, as they are made."""

    def __init__(self, template: TurnTemplate, rules: TurnRules, special: Mapping[str, int]) -> None:
        self._template, self._rules = template, rules
        self._lark = LarkRules(special)
        self._lark.add("BLANKS", f"/{_BLANKS}/")
        self._lark.add("SPACE", "/ ?/")
        content = template.regions[CONTENT]
        self._framed = content if content.opens else None  # a content that has texts around it
        self._falls_back = False  # to any arguments, where the form cannot hold a schema
        self._loose: list[str] = []
        self._left_out: list[str] = []
        # What may stand between regions: in a framed turn, the beginning of a turn.
        self._between = f"{self._any(template.anchors)}?" if self._framed is not None else "BLANKS"

    def made(self, thinking: bool, settled: bool) -> str:
        thought = self._template.regions.get(THINKING)
        thinks = thought is not None and (thinking or not settled)
        self._behind = thinks and self._framed is None
        start = self._turn()
        if thought is not None and thinks:
            self._until("thought", thought.closes)
            opens = self._any(thought.opens) if self._framed is not None else self._behind_blanks(thought.opens)
            rest = f"thought {self._between} ({start})"
            start = rest if thinking else f"({opens} thought {self._between})? ({start})"
        return self._lark.text(start)

    def one_call(self, ends: Container[str]) -> CallGrammar:
        """Return the grammar of one call alone."""
        region = self._template.regions[CALLS]
        form = region.calls
        if form is None:
            raise TurnError("has no tool_calls")
        self._falls_back = True
        lasts = all(text in ends for text in region.closes) or (region.closes_ahead and self._framed is not None)
        self._add_calls(region, form)
        closes = "" if lasts or region.closes_ahead else f"BLANKS {self._any(region.closes)}"
        listed = isinstance(form, PythonForm) or (isinstance(form, JsonForm) and form.many)
        inner = self._list_of_calls(region, form, closes) if listed else f"call {closes}"
        made = self._lark.text(inner if lasts else f"{inner} BLANKS")  # a token may have blanks behind the call
        return CallGrammar(made, lasts, tuple(self._loose), tuple(self._left_out))

    def _behind_blanks(self, texts: Sequence[str]) -> str:
        """Return the expression of one of these texts behind blanks, as one terminal where a free text begins alike."""
        made = []
        for text in texts:
            special = self._lark.special_in(text)
            made.append(f"BLANKS {self._lark.exactly(text)}" if special else f"/{_BLANKS}{literal(text)}/")
        return f"({' | '.join(made)})"

    def _turn(self) -> str:
        """Return the expression of the turn behind its thinking."""
        region, rules = self._template.regions.get(CALLS), self._rules
        if rules.calls == NEVER:
            return self._text()
        if region is None or region.calls is None:
            raise TurnError("has no tool_calls")
        opens, behind = self._calls(region, region.calls)
        calls = f"{opens} {behind}"
        if rules.calls == MUST:
            return f"{self._blanks} {calls}"
        if rules.form and region.starts:
            raise TurnError(
                "has calls that begin like texts, so no text can be constrained beside tools; leave one of both out"
            )
        text = self._text()
        if rules.form or not region.opens:
            return f"{text} | {self._blanks} {calls}"
        if self._framed is not None:
            self._until("before", self._framed.closes)
            before = f"{self._any(self._framed.opens)} before {self._between}" if self._framed.closes else ""
            return f"{text} | ({before})? {calls}"
        if region.starts:
            # The text must not begin like a call, which would be read as one.
            return f"{text} | BLANKS {calls}"
        thought = self._template.regions.get(THINKING)
        self._until("before", region.opens, thought.opens if thought is not None else ())
        return f"{text} | before {behind}"

    @property
    def _blanks(self) -> str:
        return "" if self._framed is not None else "BLANKS"

    def _text(self) -> str:
        """Return the expression of a text that is no call, and add its rule."""
        inner, framed = self._inner(), self._framed
        if framed is None:
            return inner
        closes = f"{self._any(framed.closes)}?" if framed.closes and not self._rules.form else ""
        return f"{self._any(framed.opens)} {inner} {closes}"

    def _inner(self) -> str:
        if self._rules.form == JSON:
            self._lark.add("text", self._lark.json(json.loads(self._rules.text)))
            return "text"
        if self._rules.form:
            self._lark.add("TEXT", _expression(self._rules.text) + (_NO_BLANK if self._behind else ""))
            return "TEXT"
        if self._framed is not None:
            self._lark.add("FREE", f"/{ANY}/{self._lark.without(self._framed.closes)}")
            return "FREE"
        regions = [one for name, one in self._template.regions.items() if name in (CALLS, THINKING)]
        starts = "".join(rf" & ~/\s*{literal(one.ahead)}{ANY}/" for one in regions if one.starts)
        texts = [*(text for one in regions for text in one.entries), *self._template.regions[CONTENT].closes]
        self._lark.add("FREE", f"/{ANY}/{self._lark.without(texts)}{starts}")
        return "FREE"

    def _calls(self, region: TurnRegion, form: CallForm) -> tuple[str, str]:
        """Return the expression of the first text that opens calls, and of all that follows it."""
        self._add_calls(region, form)
        opens = self._any(region.opens) if region.opens else ""
        if region.starts:
            opens = f"{opens}?" if opens else ""
        closes = f"BLANKS {self._any(region.closes)}" if region.closes and not region.closes_ahead else ""
        if isinstance(form, PythonForm) or (isinstance(form, JsonForm) and form.many):
            return opens, self._list_of_calls(region, form, closes)
        repeats = self._rules.many and region.repeats
        if self._framed is not None and closes:
            more = f"({closes} {self._between} {opens} call)*" if repeats else ""
            return opens, f"call {more} ({closes})?"
        call = f"call {closes}"
        if repeats and (region.closes or region.closes_ahead):
            return opens, f"{call} (BLANKS {opens} {call})*"
        return opens, call

    def _add_calls(self, region: TurnRegion, form: CallForm) -> None:
        """Add the rule of a call of one of the tools."""
        if region.ahead and region.ahead not in _first_texts(form):
            raise TurnError(f"looks ahead for {region.ahead[:60]!r}, which no call begins with")
        made = []
        for i, tool in enumerate(self._rules.tools):
            try:
                made.append(self._call(i, tool, form))
            except TurnError:
                if not self._falls_back:
                    raise
                self._left_out.append(tool.name)
        if not made:
            raise TurnError("can write no call of these tools; rename them")
        self._lark.add("call", " | ".join(made))

    def _list_of_calls(self, region: TurnRegion, form: CallForm, closes: str) -> str:
        """Return the expression of calls that stand together behind one opening: in a list, or each in a line."""
        listed = not isinstance(form, PythonForm) or form.listed
        more = ('("," SPACE call)*' if listed else r'("\n" call)*') if self._rules.many else ""
        if not listed:
            return f"BLANKS call {more} {closes}"
        return f'{"" if region.ahead else "BLANKS"} "[" call {more} "]" {closes}'

    def _call(self, index: int, tool: ToolRule, form: CallForm) -> str:
        """Return the expression of one call."""
        if isinstance(form, JsonForm):
            name, key, arguments = (literal(json.dumps(one)) for one in (tool.name, form.name, form.arguments))
            region = self._template.regions[CALLS]
            start = literal(region.ahead) if region.ahead.startswith("{") else ""
            begin = f"{start}: ?" if start == f"\\x{{7B}}{key}" else f"{_BLANKS}\\{{ ?{key}: ?"
            self._lark.add(f"HEAD{index}", f"/{begin}{name}, ?{arguments}: ?/")
            self._lark.add(f"arguments{index}", self._lark.json(tool.schema))
            return f"HEAD{index} arguments{index} /{_BLANKS}\\}}/"
        if isinstance(form, PythonForm):
            if not _PYTHON_NAME.fullmatch(tool.name):
                raise TurnError(f"writes calls as Python does, where {tool.name!r} is no name; rename the tool")
            return f"{json.dumps(tool.name)} {self._arguments(index, tool, form)}"
        return f"{self._head(tool, form)} {self._arguments(index, tool, form)}"

    def _arguments(self, index: int, tool: ToolRule, form: NamedForm | TagForm | PythonForm) -> str:
        name, before = f"arguments{index}", self._lark.count
        try:
            made = self._expression_of(name, tool.schema, form)
        except TurnError as error:
            if not self._falls_back:
                raise TurnError(f"{error} or choose another tool than {tool.name}") from None
            self._lark.drop(before)
            self._loose.append(tool.name)
            made = self._expression_of(name, {"type": "object"}, form)
        self._lark.add(name, made)
        return name

    def _expression_of(self, name: str, schema: Mapping[str, Any], form: NamedForm | TagForm | PythonForm) -> str:
        if isinstance(form, NamedForm) and form.is_json:
            return self._lark.json(schema)
        if isinstance(form, TagForm):
            return TagGrammar(self._lark, form, name, schema).made()
        return LiteralGrammar(self._lark, form, name, schema).made()

    def _head(self, tool: ToolRule, form: NamedForm | TagForm) -> str:
        """Return the expression of what stands between the text that opens a call and its arguments."""
        made = []
        for part in form.head:
            if isinstance(part, Blanks):
                made.append("BLANKS")
            elif isinstance(part, Gap):
                made.append(f"{self._any(part.writes)}?" if part.writes else "")
            elif isinstance(part, str):
                made.append(self._lark.exactly(part))
            elif part.name != NAME:
                made.append(f"/{part.chars}{{{part.count or 1}}}/")
            elif part.fits(tool.name):
                made.append(json.dumps(tool.name))
            else:
                raise TurnError(f"has a form of calls in which {tool.name!r} cannot be a name; rename the tool")
        return " ".join(made)

    def _until(self, name: str, texts: Sequence[str], others: Sequence[str] = ()) -> None:
        """Add a rule for any text up to the first of these, which ends it. ``others``: texts that do not come before."""
        lark = self._lark
        plain = [literal(text) for text in texts if not lark.special_in(text)]
        found = [f"{name}_text"] if plain else []
        if plain:
            lark.add(f"{name.upper()}_END", f"/{ANY}({'|'.join(plain)})/{lark.without(others)}")
            lark.add(f"{name}_text[lazy]", f"{name.upper()}_END")
        without = lark.without([*texts, *others])
        for n, text in enumerate(text for text in texts if lark.special_in(text)):
            lark.check_delimiter(text)
            lark.add(f"{name.upper()}_{n}", f"/{ANY}/{without}")
            found.append(f"{name.upper()}_{n} {lark.exactly(text)}")
        lark.add(name, " | ".join(found))

    def _any(self, texts: Sequence[str]) -> str:
        return self._lark.any(texts)


def _first_texts(form: CallForm) -> tuple[str, ...]:
    """Return the texts with which calls begin."""
    if isinstance(form, JsonForm):
        return ("[",) if form.many else ("{", "{" + json.dumps(form.name))
    return ("[",) if isinstance(form, PythonForm) and form.listed else ()

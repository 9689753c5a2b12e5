"""The jinja2 environment that chat templates run in: transformers' names and filters, an immutable sandbox, a bound on work.

A template comes with a checkpoint and is trusted as the weights are, but what requests say goes through it, and it runs
beside all streams. So turns of loops, calls, filters and operators take from a budget before they are done, in proportion to
what they may make: endless loops and huge values end after some tenths of a second, found by counting and not by a clock.
Knows nothing of messages.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

STEPS, PER_MESSAGE = 200_000, 1000  # of one conversation, and more for each message of it
CHARACTERS = 1024  # that are a step
_ITEM = 256  # characters that an item counts for, besides what it is
_SHALLOW = {  # filters that print nothing of what they are given, which may be all messages
    *("attr", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list", "map", "max"),
    *("min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort", "sum", "unique"),
}
_PAD = {"center", "format", "format_map", "ljust", "rjust", "zfill"}  # print what they are given, and a width
_REPEAT = {"expandtabs", "join", "replace", "translate"}  # methods of texts that print a thing several times
_WIDE = re.compile(r"\d{6}|%[^%a-zA-Z]*\*|\{[^{}]*\{")  # widths of a format that are huge, or not to be seen in it
_TURN = "turn of a loop"  # a filter that no template can name


class TooMuch(Exception):
    """The template does more than it may: what follows its name in a sentence."""


class _Budget(threading.local):
    """What a rendering in this thread may still do; anything, while none runs."""

    left, all = math.inf, 0

    def take(self, size: float) -> None:
        """``size``: characters that are about to be made or walked."""
        steps, most = 1 + size // CHARACTERS, self.all * CHARACTERS
        if steps <= self.left:
            self.left -= steps
        elif size > most:
            shown = f"{size:.0f}" if size < 1e15 else "10^15 or more"
            raise TooMuch(f"makes a value of {shown} characters, more than {most}")
        else:
            raise TooMuch(f"takes more than {self.all} steps (turns of loops, calls, {CHARACTERS} characters of a value)")

    def weight(self, value: Any) -> float:
        """Characters of ``value`` printed, about; an item counts as often as it is met. Stops where that is too much."""
        if isinstance(value, str):
            return len(value)
        total, rest = 0.0, [iter((value,))]
        while rest and total <= self.left * CHARACTERS:
            for one in rest[-1]:
                inner: Collection[Any] = ()
                if isinstance(one, str | bytes):
                    total += len(one)
                elif isinstance(one, int):
                    total += one.bit_length() // 3
                elif isinstance(one, Namespace):
                    inner = [one._Namespace__attrs]
                elif isinstance(one, Collection):
                    inner = [*one, *one.values()] if isinstance(one, Mapping) else one
                if inner:
                    total += _ITEM * len(inner)
                    rest.append(iter(inner))
                    break
            else:
                rest.pop()
        return total

    def take_for(self, name: str, given: Sequence[Any]) -> None:
        """What the filter or method of that name may make of what it is given."""
        sizes = [_count(one) if isinstance(one, int) else self.weight(one) for one in given]
        if name not in _PAD:
            self.take(sizes[0] * max([1.0, *sizes[1:]]))
        elif any(_WIDE.search(one) for one in given[:1] if isinstance(one, str)):
            self.take(math.inf)
        else:
            self.take(sum(sizes))


def _count(number: int) -> float:
    return float(min(abs(number), 1 << 60))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Collection) else 0


class _Generator(CodeGenerator):
    """jinja2 has no hook for ``~``."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """``{% generation %}`` marks what a model said, for training; here its body is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """See the module."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _Generator

    def __init__(self) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._printed)
        self._budget = _Budget()
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded(name, made) for name, made in self.filters.items()}
        self.filters[_TURN] = pass_context(lambda context, printed: self._budget.take(printed))
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    @contextmanager
    def budget(self, messages: int) -> Iterator[None]:
        """What this thread does with templates meanwhile is bounded, and raises TooMuch."""
        self._budget.left = self._budget.all = STEPS + PER_MESSAGE * messages
        try:
            yield
        finally:
            self._budget.left = math.inf

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps those that format
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str) and name in _PAD | _REPEAT:
            __self._budget.take_for(name, [text, *args, *kwargs.values()])
        else:
            __self._budget.take(len(text) if isinstance(text, str) else 0)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self._budget.take_for("format", (left, right))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            self._budget.take(bits[0] * _count(right) if operator == "**" else sum(bits))
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            times, many = (left, right) if isinstance(left, int) else (right, left)
            self._budget.take(_count(times) * _length(many))
        else:
            self._budget.take(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def concatenated(self, parts: Sequence[Any]) -> str:
        self._budget.take(self._budget.weight(parts))
        return str_join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        looping: tuple[type[nodes.For | nodes.Macro | nodes.CallBlock], ...] = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in parsed.find_all(looping):
            printed = nodes.Const(sum(len(data.data) for data in node.find_all(nodes.TemplateData)))
            node.body.insert(0, nodes.ExprStmt(nodes.Filter(printed, _TURN, [], [], None, None), lineno=node.lineno))
        return parsed

    def _printed(self, value: Any) -> Any:
        self._budget.take(self._budget.weight(value))
        return value

    def _bounded(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        skipped = hasattr(made, "jinja_pass_arg")

        @wraps(made)  # with what tells jinja2 to pass its context
        def bounded(*args: Any, **kwargs: Any) -> Any:
            given = [*args[skipped:], *kwargs.values()]
            if name in _SHALLOW:
                self._budget.take(max(_count(one) if isinstance(one, int) else _length(one) for one in given))
            else:
                self._budget.take_for(name, given)
            return made(*args, **kwargs)

        return bounded


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

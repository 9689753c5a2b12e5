"""The jinja2 environment of chat templates: transformers' names and filters, an immutable sandbox, a bound on work.

A template comes with a checkpoint and is trusted like the weights. But it processes the contents of requests, and it runs
beside all streams. So loop iterations, calls, filters, operators, comparisons, slices and containers take from a budget
(``template_budget.py``) before they are done, in proportion to their possible cost. Endless loops and huge values are
stopped by counting, not by a clock: after some tenths of a second, or a few seconds with a thousand messages, whose nested
loops the budget allows. Long renderings therefore run on a thread (``Front.run_in_thread``). Messages are opaque here.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
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

from ...gpu.model.fields import shown
from .template_budget import (
    ITEM,
    PER_CHARACTER,
    PER_MESSAGE,
    STEPS,
    UNITS,
    BudgetExceeded,
    TemplateBudget,
    check_integer,
    count,
    length,
)

# parts of a template: Python takes about 0.1 s to compile this number, and holds the interpreter lock meanwhile
MOST_PARTS = 10_000
_TURN, _UNPACK = "turn of a loop", "unpacked arguments"  # filter names that no template can contain
_LONGEST_FORM = 1024  # characters of a date's form
_JINJAS = {"_loop_vars", "_block_vars"}  # arguments that jinja2 adds to calls: all variables in scope
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda one, many: one in many,
    "notin": lambda one, many: one not in many,
}


class _Generator(CodeGenerator):
    """A compiler that routes operations without a jinja2 hook through the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        self._visit_all(node.nodes, frame)
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("environment.compared(")
        self.visit(node.expr, frame)
        for one in node.ops:
            self.write(f", {one.op!r}, ")
            self.visit(one.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        self._visit_all([node.node], frame)
        self.write("slice(")
        for part in (node.arg.start, node.arg.stop, node.arg.step):
            if part is None:
                self.write("None, ")
            else:
                self._visit_all([part], frame)
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made([")
        self._visit_all(node.items, frame)
        self.write("])")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.made((")
        self._visit_all(node.items, frame)
        self.write("))")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made_dict((")
        for item in node.items:
            self.write("(")
            self._visit_all([item.key, item.value], frame)
            self.write("), ")
        self.write("))")

    def _visit_all(self, parts: Sequence[nodes.Node], frame: Frame) -> None:
        for part in parts:
            self.visit(part, frame)
            self.write(", ")


class _Generation(Extension):
    """The tag ``{% generation %}``, which marks a model's own text for training; here its body is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """The environment (see the module)."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    code_generator_class = _Generator

    def __init__(self) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._printed)
        self._budget = TemplateBudget()
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded(name, made) for name, made in self.filters.items()}
        self.filters[_TURN] = pass_context(lambda context, printed: self._budget.spend(printed))
        self.filters[_UNPACK] = self._unpacked
        self.tests = {name: self._bounded_test(made) for name, made in self.tests.items()}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    @contextmanager
    def budget(self, messages: int, characters: int = 0, limit: float = float("inf")) -> Iterator[None]:
        """Bound this thread's work on templates within the block to ``limit`` steps; beyond, it raises BudgetExceeded."""
        self._budget.all = STEPS + PER_MESSAGE * messages + PER_CHARACTER * characters // UNITS
        self._budget.left = min(self._budget.all, limit)
        try:
            yield
        finally:
            self._budget.left, self._budget.all = float("inf"), 0

    # methods that compiled templates call

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self._budget
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps formatting methods
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        written = [value for key, value in kwargs.items() if key not in _JINJAS]
        if isinstance(owner, str | bytes):
            args = tuple(map(budget.listed, args))
            budget.spend_for("str.join" if name == "join" else name, [owner, *args, *written])
        elif __obj is dict or __obj is Namespace:
            args = tuple(map(budget.listed, args))
            budget.spend(budget.weight([*args, *written]))
        else:
            budget.spend(ITEM * length(owner) if isinstance(owner, list | tuple | range) else 0)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget
        if operator == "%" and isinstance(left, str):
            budget.spend_for("format", (left, right))
        elif isinstance(left, int) and isinstance(right, int):
            budget.spend(0)
            bits = left.bit_length(), right.bit_length()
            by = {"*": sum(bits), "**": bits[0] * count(right) if abs(left) > 1 else 1}
            check_integer(max(*bits, by.get(operator, 0)))
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            times, many = (left, right) if isinstance(left, int) else (right, left)
            budget.spend_text(count(times) * budget.weight(many))
        else:
            budget.spend_text(budget.weight(left) + budget.weight(right))
        return super().call_binop(context, operator, left, right)

    def concatenated(self, parts: Sequence[Any]) -> str:
        self._budget.spend_text(self._budget.weight(parts))
        return str_join(parts)

    def compared(self, left: Any, *rest: Any) -> Any:
        """Compare from left to right, like ``a < b < c``; all operands are evaluated already."""
        result: Any = True
        for how, right in zip(rest[::2], rest[1::2], strict=True):
            self._take_comparison(left, right)
            result = _COMPARE[how](left, right)
            if not result:
                break
            left = right
        return result

    def sliced(self, value: Any, part: slice) -> Any:
        self._budget.spend(length(value))
        return value[part]

    def made(self, value: Any) -> Any:
        """Take the steps for a list or tuple with all its contents.

        This stops values that contain themselves twice, again and again.
        """
        self._budget.spend(self._budget.weight(value))
        return value

    def made_dict(self, pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
        self._budget.spend(self._budget.weight(pairs))
        return dict(pairs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse methods of numbers and bytes, which can make values of any length, besides the sandbox's own refusals."""
        if isinstance(obj, int | float | bytes) and attr != "decode":
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        parts = sum(1 for _ in parsed.find_all(nodes.Node))
        if parts > MOST_PARTS:
            raise BudgetExceeded(f"has {parts} parts, more than {MOST_PARTS}")
        looping: tuple[type[nodes.For | nodes.Macro | nodes.CallBlock], ...] = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in parsed.find_all(looping):
            printed = nodes.Const(sum(len(data.data) for data in node.find_all(nodes.TemplateData)))
            node.body.insert(0, nodes.ExprStmt(nodes.Filter(printed, _TURN, [], [], None, None), lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:  # what it leaves out is a turn, too
                turn = nodes.Filter(nodes.Const(0), _TURN, [], [], None, None)
                node.test = nodes.And(nodes.Not(turn), node.test, lineno=node.lineno)
        for call in parsed.find_all((nodes.Call, nodes.Filter, nodes.Test)):
            for name in ("dyn_args", "dyn_kwargs"):
                if (given := getattr(call, name)) is not None:
                    setattr(call, name, nodes.Filter(given, _UNPACK, [], [], None, None, lineno=call.lineno))
        return parsed

    def _printed(self, value: Any) -> Any:
        self._budget.spend_text(self._budget.weight(value))
        return value

    def _unpacked(self, value: Any) -> Any:
        """Take the steps of giving each item of a value as an argument of its own."""
        value = self._budget.listed(value)
        self._budget.spend(ITEM * length(value))
        return value

    def _take_comparison(self, *values: Any) -> None:
        """Take the steps for comparing two values; short texts and numbers are free."""
        units = sum(self._budget.weight(one) for one in values if isinstance(one, str | list | tuple | dict | Namespace))
        if units >= UNITS:
            self._budget.spend(units)

    def _bounded(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        skipped = hasattr(made, "jinja_pass_arg")

        @wraps(made)  # keeps the attribute that tells jinja2 to pass its context
        def bounded(*args: Any, **kwargs: Any) -> Any:
            passed, given = args[:skipped], [self._budget.listed(one) for one in args[skipped:]]
            self._budget.spend_for(name, [*given, *kwargs.values()])
            return made(*passed, *given, **kwargs)

        return bounded

    def _bounded_test(self, made: Any) -> Callable[..., Any]:
        skipped = hasattr(made, "jinja_pass_arg")

        @wraps(made)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._take_comparison(*args[skipped:])
            return made(*args, **kwargs)

        return bounded


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(message if isinstance(message, str) else shown(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_FORM:
        raise jinja2.TemplateError(f"strftime_now takes at most {_LONGEST_FORM} characters, not {len(form)}")
    return datetime.now().strftime(form)

"""The calls of a turn that is free otherwise: their grammar, as exactly as the schemas of tools that are not strict allow.

A schema that cannot be held, or is too much, is loosened to any object, and its place in the request is reported. What has
been found for the tools of a request is remembered, because an agent sends the same ones with each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...gpu.sampling.free_turn import FreeTurn
from ...policies.plan.grammar import JSON, LARK
from ..constraints.fields import schema_constraint
from ..errors import ApiError
from ..http.context import Front
from ..http.held_tools import HeldTools
from ..text.turn.call_forms import PythonForm
from ..text.turn.grammar import CallGrammar, ToolRule, call_grammar, starts_of
from ..text.turn.template import CALLS, CONTENT, THINKING, TurnError, TurnTemplate
from .tools import Tool
from .turns import AnswerTurn

HELD_BYTES = 32 << 10  # of all schemas of a request together, without their annotations
QUICK_BYTES = 16 << 10  # of tools that are looked at without a thread
_OBJECT = {"type": "object"}
Fault = Callable[[str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class _Schemas:
    """The schemas that are held, by place of the tool; the others' places, and parts without an effect."""

    held: tuple[dict[str, Any] | None, ...]
    ignored: tuple[str, ...]

    def rules(self, tools: Sequence[Tool]) -> list[ToolRule]:
        return [ToolRule(tool.name, schema or _OBJECT) for tool, schema in zip(tools, self.held, strict=True)]


def _schemas(tools: Sequence[Tool]) -> _Schemas:
    """Return the schemas that can be held, as many as there is room for, in the order of the tools."""
    held: list[dict[str, Any] | None] = []
    ignored: list[str] = []
    left = HELD_BYTES
    for tool in tools:
        try:
            constraint = schema_constraint(tool.parameters, tool.field)
        except ApiError:
            held.append(None)
            continue
        fits = len(constraint.text) <= left
        left -= len(constraint.text) if fits else 0
        held.append(json.loads(constraint.text) if fits else None)
        ignored += constraint.ignored if fits else ()
    return _Schemas(tuple(held), tuple(ignored))


async def held_tools(front: Front, turn: AnswerTurn, ends: frozenset[str], fault: Fault) -> HeldTools:
    """Return the grammar of a call of the tools that an answer may call. ``fault`` tells why one cannot be compiled."""
    tools = [tool for tool, _ in turn.use.callable]
    written = json.dumps([[tool.name, tool.field, tool.parameters] for tool in tools])
    parts = f"{turn.template!r} {sorted(turn.special.items())} {sorted(ends)} {written}"
    key = hashlib.blake2b(parts.encode(errors="surrogatepass"), digest_size=16).digest()
    if (found := front.held_tools.get(key)) is None:
        found = await _found(front, turn, tools, ends, fault, quick=len(written) <= QUICK_BYTES)
        front.held_tools.add(key, found)
    return found


async def _found(
    front: Front, turn: AnswerTurn, tools: list[Tool], ends: frozenset[str], fault: Fault, *, quick: bool
) -> HeldTools:
    async def made(schemas: _Schemas) -> CallGrammar | None:
        """Return the grammar if it can be compiled."""

        def both() -> tuple[CallGrammar, str]:
            rules = schemas.rules(tools)
            by_name = call_grammar(turn.template, rules, special={}, ends=ends)
            return call_grammar(turn.template, rules, special=turn.special, ends=ends), by_name.text

        try:
            found, by_name = both() if quick else await front.run_in_thread(both)
        except TurnError:
            return None
        return found if not await fault(LARK, by_name) else None

    schemas = _schemas(tools) if quick else await front.run_in_thread(lambda: _schemas(tools))
    grammar = await made(schemas)
    if grammar is None:  # which of them is it?
        sound = [one if one is not None and not await fault(JSON, json.dumps(one)) else None for one in schemas.held]
        schemas = replace(schemas, held=tuple(sound))
        grammar = await made(schemas)
    if grammar is None:
        schemas = _Schemas((None,) * len(tools), ())
        grammar = await made(schemas)
    if grammar is None:
        fields = tuple(tool.field for tool in tools)
        return HeldTools("", lasts=False, names=(), ignored=fields, schemas=("",) * len(tools))
    unheld = {*grammar.loose, *grammar.left_out}
    unheld |= {tool.name for tool, schema in zip(tools, schemas.held, strict=True) if schema is None}
    ignored = (*(tool.field for tool in tools if tool.name in unheld), *schemas.ignored)
    names = tuple(tool.name for tool in tools if tool.name not in grammar.left_out)
    held = tuple("" if tool.name in unheld else json.dumps(one) for tool, one in zip(tools, schemas.held, strict=True))
    return HeldTools(grammar.text, grammar.lasts, names, ignored, held)


def without_strict(turn: AnswerTurn) -> AnswerTurn:
    """Return a turn with its tools that are not strict alone."""
    return _with_tools(turn, [(tool, schema) for tool, schema in turn.use.callable if not tool.strict])


def with_arguments(turn: AnswerTurn, held: HeldTools) -> AnswerTurn:
    """Return a turn with the schemas that are held of its tools that are not strict."""
    schemas = iter(held.schemas)
    found = []
    for tool, schema in turn.use.callable:
        text = "" if tool.strict else next(schemas)
        found.append((tool, json.loads(text) if text else schema))
    return _with_tools(turn, found)


def _with_tools(turn: AnswerTurn, tools: Sequence[tuple[Tool, dict[str, Any]]]) -> AnswerTurn:
    return replace(turn, use=replace(turn.use, callable=tuple(tools)))


def free_turn(
    template: TurnTemplate, standing: tuple[str, bool, str], held: HeldTools, said: Mapping[int, str]
) -> FreeTurn | None:
    """Return the turn that such calls are a part of; None: the prompt has begun a call.

    ``standing``: of the reader, before its first text. ``said``: special tokens that are texts in the answer.
    """
    regions = template.regions
    calls, content = regions[CALLS], regions[CONTENT]
    thinking = regions.get(THINKING)
    region, fresh, begun = standing
    if region == CALLS:
        return None
    return FreeTurn(
        call=held.grammar,
        calls=list(calls.entries),
        starts=starts_of(template, held.names),
        ahead=calls.ahead,
        listed=isinstance(calls.calls, PythonForm) and calls.starts,
        lasts=held.lasts,
        thinking=(list(thinking.opens), list(thinking.closes)) if thinking is not None else ([], []),
        content=(list(content.opens), list(content.closes)),
        said={str(id): text for id, text in sorted(said.items())},
        region=region,
        fresh=fresh,
        held=begun,
    )

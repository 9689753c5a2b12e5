"""The turn of a chat: what of the answer is read as reasoning and tool calls, and the grammar that it must follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...actors.gateway.port import ModelInfo
from ...policies.plan.grammar import CLIENTS_LARK, REGEX
from ..constraints.constraint import Constraint
from ..errors import ApiError, bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from ..text.turn.grammar import MAY, MUST, NEVER, ToolRule, TurnRules, text_behind_thinking, turn_grammar
from ..text.turn.reader import TurnReader
from ..text.turn.template import CALLS, CONTENT, THINKING, TurnError, TurnTemplate
from .fields import ChatOptions
from .tools import AUTO, NONE, ToolUse


@dataclass(frozen=True, slots=True)
class AnswerTurn:
    """The reading of an answer.

    ``begun``: the part of it that the prompt has. ``special``: special tokens among the delimiters.
    """

    template: TurnTemplate
    begun: str
    use: ToolUse
    special: Mapping[str, int]
    constrained: bool  # the text of the answer has a language of its own
    model: str
    schemas: Mapping[str, Any] = field(default_factory=dict)  # what the arguments of tools are, by name

    def reader(self) -> TurnReader:
        """Return a reader before its first text."""
        calls = bool(self.use.callable)
        return TurnReader(self.template, self.begun, calls=calls, constrained=self.constrained, schemas=self.schemas)

    @property
    def shapes(self) -> bool:
        """True if a grammar must be one of the whole turn, not of its text alone."""
        return self.use.constrains or (self.constrained and (bool(self.use.callable) or self._may_think))

    @property
    def holds_calls(self) -> bool:
        """True if the turn is free, but for the calls that the model makes."""
        return self.use.choice.mode == AUTO and bool(self.use.callable) and not self.shapes

    @property
    def _may_think(self) -> bool:
        reader = self.reader()
        return THINKING in self.template.regions and (reader.thinking or not reader.settled)

    def text_grammar(self, constraint: Constraint) -> str:
        """Return the grammar of what is left of a constraint behind thinking; empty: all of it."""
        exact = constraint.form != REGEX or not self._may_think or self.template.regions[CONTENT].opens
        return "" if exact else text_behind_thinking(constraint.text)

    def grammar(self, constraint: Constraint | None, *, by_name: bool = False) -> str:
        """Return the grammar of the turn. ``by_name``: special tokens are texts in it, for a vocabulary without them.

        Raise a 400.
        """
        rules = TurnRules(
            tools=[ToolRule(tool.name, schema) for tool, schema in self.use.callable],
            calls=(MAY if self.use.choice.mode == AUTO else MUST) if self.use.callable else NEVER,
            many=self.use.many,
        )
        if constraint is not None:
            rules = replace(rules, form=constraint.form, text=constraint.text)
        reader, special = self.reader(), {} if by_name else self.special
        if reader.inside_text or reader.standing[0] == CALLS:
            what = "text" if reader.inside_text else "call"
            why = (
                f"a turn is constrained from its beginning, but the prompt has begun a {what}; end with a message of a user"
            )
            raise bad_request(why, "messages", "no_turn_template")
        try:
            return turn_grammar(self.template, rules, thinking=reader.thinking, settled=reader.settled, special=special)
        except TurnError as error:
            raise bad_request(f"the turn template of {self.model} {error}", "tools", "no_turn_template") from None


def turn_for(front: Front, info: ModelInfo, served: ServedModel, options: ChatOptions, prompt: str) -> AnswerTurn | None:
    """Return the turn of a request, or None for an answer that is one text; raise a 400 where tools cannot be used."""
    found, use = front.catalog.turn(info, served), options.tool_use
    if options.tools:
        _check_tools(info, found, options, prompt)
    if not isinstance(found, TurnTemplate):
        return None
    constraints = options.constraints
    if constraints and constraints[0].form == CLIENTS_LARK:
        return None  # a grammar of the whole answer
    codec = served.codec
    named = {codec.said(id): id for id in codec.special if id < served.vocabulary}
    special = {text: id for text, id in named.items() if text and any(text in one for one in found.delimiters)}
    schemas = {tool.name: tool.parameters for tool in options.tools}
    return AnswerTurn(found, found.begun(prompt), use, special, bool(constraints), info.id, schemas)


def _check_tools(info: ModelInfo, found: TurnTemplate | TurnError | None, options: ChatOptions, prompt: str) -> None:
    remedy = f"set turns.{info.id} to the file of one, or leave tools out"
    why = ""
    if found is None:
        why = f"{info.id} has no turn template, so its tool calls cannot be read; {remedy}"
    elif isinstance(found, TurnError):
        why = f"the turn template of {info.id} {found}; {remedy}"
    elif CALLS not in found.regions:
        why = f"the turn template of {info.id} has no tool_calls; {remedy}"
    elif options.tool_use.choice.mode != NONE and not all(tool.name in prompt for tool in options.tools):
        why = f"the chat template of {info.id} does not print the tools; give it another one, or leave tools out"
    if why:
        raise ApiError(400, why, param="tools", code="no_turn_template")


def effort_variables(source: str, effort: str | None, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the variables of a chat template that an effort sets; None: it has none, or the request sets them itself."""
    if effort is None:
        return {}
    values = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    return {name: value for name, value in values.items() if name in source and name not in given} or None

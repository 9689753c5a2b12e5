"""The field types of tools (function calling): functions that a model may call, and the choice among them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import shown, unicode_text
from ..constraints.fields import schema_constraint
from ..errors import bad_request
from .field_types import Schema

MOST_TOOLS = 128
NONE, AUTO = "none", "auto"
REQUIRED, NAMED = "required", "named"
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_NAMES = "1 to 64 letters, digits and _ . : / -"
_OBJECT: Schema = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as a request describes it. ``given``: the whole description, which the chat template prints."""

    name: str
    given: dict[str, Any]
    parameters: dict[str, Any]
    strict: bool
    field: str  # place of the parameters in the request


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that may be called. ``mode`` NAMED: the one of that ``name``, which must be. ``allowed``: None for all."""

    mode: str = AUTO
    name: str = ""
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """A list of OpenAI's tools of type function."""

    def read(self, value: Any, name: str) -> tuple[Tool, ...]:
        if not isinstance(value, list):
            raise bad_request(f"{name} is {shown(value)}; give a list of tools", name, "invalid_type")
        made = tuple(_tool(one, f"{name}[{i}]") for i, one in enumerate(value))
        check_tools(made, name)
        return made

    def schema(self) -> Schema:
        function = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        }
        tool = {
            "type": "object",
            "properties": {"type": {"const": "function"}, "function": function},
            "required": ["type", "function"],
        }
        return {"type": "array", "maxItems": MOST_TOOLS, "items": tool}


def _tool(value: Any, at: str) -> Tool:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "function":
        raise bad_request(f"{at} is {shown(value if kind is None else kind)}; give a tool of type function", at)
    function = value.get("function")
    if not isinstance(function, dict):
        raise bad_request(f"{at}.function is {shown(function)}; give an object with a name", at, "invalid_type")
    return function_tool(function, f"{at}.function", "parameters", value)


def function_tool(function: dict[str, Any], at: str, key: str, given: dict[str, Any]) -> Tool:
    """Return the tool that an object describes; raise a 400. ``key``: the field that has the schema of its parameters.

    ``given``: the description in OpenAI's form.
    """
    name, strict, parameters = (function.get(one) for one in ("name", "strict", key))
    name = tool_name(name, f"{at}.name")
    if not isinstance(strict, bool | None):
        raise bad_request(f"{at}.strict is {shown(strict)}; give true or false", f"{at}.strict")
    if not isinstance(function.get("description"), str | None):
        raise bad_request(f"{at}.description is no text; give one", f"{at}.description")
    unicode_text(function.get("description") or "", f"{at}.description")
    if not isinstance(parameters, dict | None) or (parameters or {}).get("type", "object") != "object":
        raise bad_request(f"{at}.{key} is {shown(parameters)}; give the JSON schema of an object", f"{at}.{key}")
    return Tool(name, given, {**_OBJECT, **(parameters or {})}, bool(strict), f"{at}.{key}")


def tool_name(name: Any, at: str) -> str:
    """Return the name of a tool; raise a 400 for one that no model could write."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise bad_request(f"{at} is {shown(name)}; give {_NAMES}", at)
    return name


def check_tools(tools: Sequence[Tool], name: str) -> None:
    """Raise a 400 for too many tools, and for two of one name."""
    if len(tools) > MOST_TOOLS:
        raise bad_request(f"{name} has {len(tools)} tools; give at most {MOST_TOOLS}", name)
    names = [tool.name for tool in tools]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise bad_request(f"{name} has two tools of the name {twice}; give each its own", name)


@dataclass(frozen=True, slots=True)
class ToolChoices:
    """OpenAI's choice of a tool: none, auto, required, or an object that names one."""

    def read(self, value: Any, name: str) -> ToolChoice:
        if isinstance(value, str) and value in (NONE, AUTO, REQUIRED):
            return ToolChoice(value)
        function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
        chosen = function.get("name") if isinstance(function, dict) else None
        if not isinstance(chosen, str):
            form = '{"type": "function", "function": {"name": NAME}}'
            raise bad_request(f"{name} is {shown(value)}; give none, auto, required or {form}", name)
        return ToolChoice(NAMED, chosen)

    def schema(self) -> Schema:
        named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        properties = {"type": {"const": "function"}, "function": named}
        chosen = {"type": "object", "properties": properties, "required": ["type", "function"]}
        return {"anyOf": [{"type": "string", "enum": [NONE, AUTO, REQUIRED]}, chosen]}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request with what holds of their calls.

    ``callable``: the tools that may be called, with the schemas that are held. ``constrains``: a grammar is needed.
    ``ignored``: parts of the schemas without an effect.
    """

    choice: ToolChoice
    callable: Sequence[tuple[Tool, Schema]] = ()
    many: bool = True
    constrains: bool = False
    ignored: tuple[str, ...] = ()


def tool_use(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool) -> ToolUse:
    """Return how a request's tools may be used; raise a 400 for contradictory fields and a schema that cannot be held."""
    choice = choice or ToolChoice()
    if not tools:
        if choice.mode in (REQUIRED, NAMED):
            raise bad_request("tool_choice asks for a call, but there are no tools; give tools", "tool_choice")
        return ToolUse(choice)
    if choice.mode == NONE:
        return ToolUse(choice, constrains=True)
    fewer = frozenset((choice.name,)) if choice.mode == NAMED else choice.allowed
    found = [tool for tool in tools if fewer is None or tool.name in fewer]
    if missing := sorted((fewer or frozenset()) - {tool.name for tool in tools}):
        names = ", ".join(tool.name for tool in tools[:20])
        raise bad_request(f"tool_choice names {shown(missing[0])}, which is no tool; there are: {names}", "tool_choice")
    forced = choice.mode != AUTO
    held: list[tuple[Tool, Schema]] = []
    ignored: list[str] = []
    for tool in found:
        if forced or tool.strict:
            constraint = schema_constraint(tool.parameters, tool.field)
            held.append((tool, json.loads(constraint.text)))
            ignored += constraint.ignored
        else:
            held.append((tool, _OBJECT))
    many = parallel and choice.mode != NAMED
    strict = any(tool.strict for tool in found)
    return ToolUse(choice, tuple(held), many, forced or strict or not parallel or len(found) < len(tools), tuple(ignored))

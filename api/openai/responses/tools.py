"""The tools of a response, in their flat form, and the choice among them.

Tools that OpenAI itself runs are not here: they are left out, and named as ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...checks import shown
from ...errors import bad_request
from ..field_types import Schema
from ..tools import AUTO, MOST_TOOLS, NAME, NAMED, NONE, REQUIRED, Tool, ToolChoice, check_tools, function_tool
from .custom_tools import custom_tool

FUNCTION, CUSTOM = "function", "custom"
ALLOWED = "allowed_tools"
HOSTED = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "local_shell", "shell"),
    *("apply_patch", "tool_search", "programmatic_tool_calling"),
)
_OF_TOOL = {
    FUNCTION: {"type", "name", "description", "parameters", "strict"},
    CUSTOM: {"type", "name", "description", "format"},
}
_OF_FORMAT = {"text": {"type"}, "grammar": {"type", "syntax", "definition"}}
_PRINTED = ("name", "description", "parameters", "strict")


def is_hosted(kind: Any) -> bool:
    """Return True for a tool that OpenAI runs; later versions of one have a longer name."""
    return isinstance(kind, str) and kind.startswith(HOSTED)


@dataclass(frozen=True, slots=True)
class GivenTools:
    """The tools of a request that are used. ``shown``: as the answer repeats them. ``ignored``: names of the others."""

    tools: tuple[Tool, ...] = ()
    custom: frozenset[str] = frozenset()
    shown: tuple[dict[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The field type of tools: functions and custom tools."""

    def read(self, value: Any, name: str) -> GivenTools:
        if not isinstance(value, list):
            raise bad_request(f"{name} is {shown(value)}; give a list of tools", name, "invalid_type")
        tools: list[Tool] = []
        repeated: list[dict[str, Any]] = []
        ignored: list[str] = []
        for i, one in enumerate(value):
            at = f"{name}[{i}]"
            kind = one.get("type") if isinstance(one, dict) else None
            if is_hosted(kind):
                ignored.append(f"{at}.{kind}")
                continue
            if not isinstance(kind, str) or kind not in _OF_TOOL:
                found = shown(one if kind is None else kind)
                raise bad_request(f"{at} is {found}; give a tool of type function or custom", at)
            tools.append(_function(one, at) if kind == FUNCTION else custom_tool(one, at))
            repeated.append(_repeated(one, tools[-1]))
        check_tools(tools, name)
        custom = frozenset(tool.name for tool, one in zip(tools, repeated, strict=True) if one["type"] == CUSTOM)
        return GivenTools(tuple(tools), custom, tuple(repeated), tuple(ignored))

    def unknown(self, value: Any, name: str) -> list[str]:
        found = []
        for i, tool in enumerate(value):
            known = _OF_TOOL.get(tool["type"], tool.keys())
            found += [f"{name}[{i}].{key}" for key, inner in tool.items() if key not in known and inner is not None]
            if tool["type"] == CUSTOM and (format := tool.get("format")):
                found += [f"{name}[{i}].format.{key}" for key in format.keys() - _OF_FORMAT[format["type"]]]
        return found

    def schema(self) -> Schema:
        named = {"name": {"type": "string", "pattern": f"^{NAME.pattern}$"}, "description": {"type": ["string", "null"]}}
        function = {"parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}
        custom = {"format": {"type": ["object", "null"]}}
        kinds = [
            {
                "type": "object",
                "properties": {"type": {"const": kind}, **named, **own},
                "required": ["type", "name"],
            }
            for kind, own in ((FUNCTION, function), (CUSTOM, custom))
        ]
        hosted = {"type": "object", "properties": {"type": {"enum": [*HOSTED]}}, "required": ["type"]}
        return {"type": "array", "maxItems": MOST_TOOLS, "items": {"anyOf": [*kinds, hosted]}}


def _function(value: dict[str, Any], at: str) -> Tool:
    printed = {key: inner for key, inner in value.items() if key in _PRINTED and inner is not None}
    return function_tool(value, at, "parameters", {"type": FUNCTION, FUNCTION: printed})


def _repeated(given: dict[str, Any], tool: Tool) -> dict[str, Any]:
    """Return a tool as the answer repeats it, with what holds of it."""
    made = {"type": given["type"], "name": tool.name, "description": given.get("description")}
    if made["type"] == CUSTOM:
        format = given.get("format") or {"type": "text"}
        return made | {"format": {key: inner for key, inner in format.items() if key in _OF_FORMAT[format["type"]]}}
    return made | {"parameters": given.get("parameters"), "strict": tool.strict}


@dataclass(frozen=True, slots=True)
class GivenChoice:
    """The choice of a tool, and the form in which the answer repeats it."""

    choice: ToolChoice
    shown: Any


@dataclass(frozen=True, slots=True)
class ResponseChoices:
    """The field type of a choice: none, auto, required, an object that names a tool, or one that names some."""

    def read(self, value: Any, name: str) -> GivenChoice:
        if isinstance(value, str) and value in (NONE, AUTO, REQUIRED):
            return GivenChoice(ToolChoice(value), value)
        kind = value.get("type") if isinstance(value, dict) else None
        if kind in (FUNCTION, CUSTOM) and isinstance(value.get("name"), str):
            return GivenChoice(ToolChoice(NAMED, value["name"]), {"type": kind, "name": value["name"]})
        if kind == ALLOWED:
            return _allowed(value, name)
        if is_hosted(kind):
            why = f"{name} is {shown(kind)}, a tool that is not run here; choose one of your functions"
            raise bad_request(why, name, "unsupported_parameter")
        forms = '{"type": "function", "name": NAME}, also of type custom, or {"type": "allowed_tools", ...}'
        raise bad_request(f"{name} is {shown(value)}; give none, auto, required, {forms}", name)

    def schema(self) -> Schema:
        of_kind: Schema = {"type": {"enum": [FUNCTION, CUSTOM]}, "name": {"type": "string"}}
        named = {"type": "object", "properties": of_kind, "required": ["type", "name"]}
        some: Schema = {
            "type": {"const": ALLOWED},
            "mode": {"enum": [AUTO, REQUIRED]},
            "tools": {"type": "array", "minItems": 1, "items": named},
        }
        allowed = {"type": "object", "properties": some, "required": [*some]}
        return {"anyOf": [{"type": "string", "enum": [NONE, AUTO, REQUIRED]}, named, allowed]}


def _allowed(value: dict[str, Any], name: str) -> GivenChoice:
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in (AUTO, REQUIRED) or not isinstance(mode, str):
        raise bad_request(f"{name}.mode is {shown(mode)}; give auto or required", f"{name}.mode")
    named: list[dict[str, str]] = []
    for i, tool in enumerate(tools if isinstance(tools, list) else ()):
        found = tool.get("name") if isinstance(tool, dict) and tool.get("type") in (FUNCTION, CUSTOM) else None
        if not isinstance(found, str):
            at = f"{name}.tools[{i}]"
            raise bad_request(f'{at} is {shown(tool)}; give {{"type": "function", "name": NAME}}', at)
        named.append({"type": tool["type"], "name": found})
    if not named:
        raise bad_request(f"{name}.tools is {shown(tools)}; give a list of at least one tool", f"{name}.tools")
    choice = ToolChoice(mode, allowed=frozenset(one["name"] for one in named))
    return GivenChoice(choice, {"type": ALLOWED, "mode": mode, "tools": named})

"""The field types of tools and of the choice among them, in Anthropic's form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..checks import Body, shown
from ..errors import bad_request
from ..openai.field_types import Flag, Schema
from ..openai.tools import AUTO, NAMED, NONE, REQUIRED, Tool, ToolChoice, check_tools, function_tool

OWN = "custom"  # the type of a tool that the client describes and runs
_OF_TOOL = {"type", "name", "description", "input_schema", "strict", "cache_control"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {"defer_loading": (False,), "allowed_callers": (["direct"],), "input_examples": ([],)}
_CHOICES = {"auto": AUTO, "any": REQUIRED, "tool": NAMED, "none": NONE}
_OF_CHOICE = {"type", "name", "disable_parallel_tool_use"}


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request. ``ignored``: tools that the server is to run, or whose schemas only Anthropic has."""

    tools: tuple[Tool, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The field type of ``tools``."""

    def read(self, value: Any, name: str) -> OfferedTools:
        if not isinstance(value, list):
            raise bad_request(f"{name} is {shown(value)}; give a list of tools", name, "invalid_type")
        ignored = tuple(f"{at}.{tool['type']}" for tool, at in _each(value, name) if not _is_own(tool))
        made = tuple(_tool(tool, at) for tool, at in _each(value, name) if _is_own(tool))
        check_tools(made, name)
        return OfferedTools(made, ignored)

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of the client's own tools."""
        return [
            f"{at}.{key}"
            for tool, at in _each(value, name)
            if _is_own(tool)
            for key, inner in tool.items()
            if inner is not None and key not in _OF_TOOL and inner not in _NEUTRAL.get(key, ())
        ]

    def schema(self) -> Schema:
        properties: Schema = {
            "type": {"type": ["string", "null"]},
            "name": {"type": "string"},
            "description": {"type": ["string", "null"]},
            "input_schema": {"type": "object"},
            "strict": {"type": ["boolean", "null"]},
        }
        return {"type": "array", "items": {"type": "object", "properties": properties}}


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """The tools that may be called. ``parallel``: several calls may be made in one answer."""

    choice: ToolChoice
    parallel: bool


@dataclass(frozen=True, slots=True)
class ToolSelectionField:
    """The field type of ``tool_choice``."""

    def read(self, value: Any, name: str) -> ToolSelection:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _CHOICES:
            raise bad_request(f"{name} is {shown(value)}; give an object of type {', '.join(_CHOICES)}", name)
        chosen = value.get("name")
        if kind == "tool" and not isinstance(chosen, str):
            raise bad_request(f"{name}.name is {shown(chosen)}; give the name of a tool", f"{name}.name")
        alone = value.get("disable_parallel_tool_use")
        parallel = alone is None or not Flag().read(alone, f"{name}.disable_parallel_tool_use")
        return ToolSelection(ToolChoice(_CHOICES[kind], chosen if kind == "tool" else ""), parallel)

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of the choice."""
        known = _OF_CHOICE if value["type"] == "tool" else _OF_CHOICE - {"name"}
        return [f"{name}.{key}" for key, inner in value.items() if inner is not None and key not in known]

    def schema(self) -> Schema:
        properties: Schema = {
            "type": {"enum": [*_CHOICES]},
            "name": {"type": ["string", "null"]},
            "disable_parallel_tool_use": {"type": ["boolean", "null"]},
        }
        return {"type": "object", "properties": properties, "required": ["type"]}


def _each(value: list[Any], name: str) -> Iterator[tuple[Body, str]]:
    """Yield the tools with the place of each; raise a 400 for what is none."""
    for i, tool in enumerate(value):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str | None):
            where = f"{name}[{i}]"
            raise bad_request(f"{where} is {shown(tool)}; give an object with name and input_schema", where, "invalid_type")
        yield tool, f"{name}[{i}]"


def _is_own(tool: Body) -> bool:
    return tool.get("type") in (None, OWN)


def _tool(tool: Body, at: str) -> Tool:
    """Return a tool as a chat has it; raise a 400."""
    if tool.get("input_schema") is None:
        where = f"{at}.input_schema"
        raise bad_request(f"{where} is missing; give the JSON schema of an object", where, "missing_required_parameter")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    if tool.get("description") is None:
        del function["description"]
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return function_tool(tool, at, "input_schema", {"type": "function", "function": function})

"""The turn templates of well-known models, which their chat templates tell apart by the texts in them."""

from __future__ import annotations

from typing import Any

_ROLE = {"role": "assistant"}
_CONTENT = {"repeats": True, "join": ""}
_THINKING = {"open": "<think>", "close": "</think>"}
_FUNCTION = {"type": "function", "function": "{content}"}
_EACH = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
_TAGGED = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": _FUNCTION,
}
_ANCHORS: dict[str, str | list[str]] = {
    "<|im_start|>": ["<|im_start|>assistant\n", "<|im_start|>assistant"],
    "<|start_of_role|>": "<|start_of_role|>assistant<|end_of_role|>",
    "<\uff5cAssistant\uff5c>": "<\uff5cAssistant\uff5c>",
}


def known_template(source: str) -> dict[str, Any] | None:
    """Return the turn template that goes with a chat template, or None."""
    if "[TOOL_CALLS]" in source and "[ARGS]" not in source and "[/INST]" in source:
        return _made(["[/INST]", "[/TOOL_RESULTS]"], tool_calls=_listed("[TOOL_CALLS]"))
    anchor = next((found for mark, found in _ANCHORS.items() if mark in source), None)
    if anchor is None:
        return None
    regions: dict[str, dict[str, Any]] = {"thinking": _THINKING} if "</think>" in source else {}
    if "<tool_call>" in source and not any(mark in source for mark in ("<function=", "<arg_key>", "<parameter=")):
        regions["tool_calls"] = _TAGGED
    elif "<|tool_call|>" in source and "<|start_of_role|>" in source:
        regions["tool_calls"] = _listed("<|tool_call|>")
    return _made(anchor, **regions) if regions else None


def _listed(open: str) -> dict[str, Any]:
    """Return the region of calls that are one list until the turn ends."""
    return {"open": open, "content": "json", "transform": _EACH, "transform_each": True}


def _made(anchor: str | list[str], **regions: dict[str, Any]) -> dict[str, Any]:
    return {"defaults": _ROLE, "start_anchor": anchor, "fields": {**regions, "content": _CONTENT}}

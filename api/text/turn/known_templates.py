"""The turn templates of well-known models, which their chat templates tell apart by the texts in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_ROLE = {"role": "assistant"}
_CONTENT = {"repeats": True, "join": ""}
_THINKING = {"open": "<think>", "close": "</think>"}
_FUNCTION = {"type": "function", "function": "{content}"}
_EACH = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
_HEADED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_CHATML = ["<|im_start|>assistant\n", "<|im_start|>assistant"]
_Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Model:
    """A kind of models. Its chat templates have all of ``marks``, and none of ``unlike``.

    ``anchors``: where a turn begins. ``calls``: the region of calls; none for thinking alone.
    """

    marks: tuple[str, ...]
    anchors: str | list[str]
    calls: _Fields | None = None
    unlike: tuple[str, ...] = ()
    content: _Fields = field(default_factory=lambda: _CONTENT)
    thinking: _Fields = field(default_factory=lambda: _THINKING)

    def of(self, source: str) -> _Fields | None:
        """Return the turn template, or None if it would tell nothing apart."""
        fields: _Fields = {"content": self.content}
        if str(self.thinking["close"]) in source:
            fields["thinking"] = self.thinking
        if self.calls is not None:
            fields["tool_calls"] = self.calls
        return {"defaults": _ROLE, "start_anchor": self.anchors, "fields": fields} if len(fields) > 1 else None


def known_template(source: str) -> _Fields | None:
    """Return the turn template that goes with a chat template, or None."""
    for model in _MODELS:
        if all(mark in source for mark in model.marks) and not any(mark in source for mark in model.unlike):
            return model.of(source)
    return None


def _listed(open: str, close: str = "") -> _Fields:
    """Return the region of calls that are one list of JSON, by default until the turn ends."""
    opening: _Fields = {"open_pattern" if "(?=" in open else "open": open}
    closing = {"close": close} if close else {}
    return {**opening, **closing, "content": "json", "transform": _EACH, "transform_each": True}


def _mistral(id: str = "") -> _Fields:
    """Return the region of newer Mistral's calls. ``id``: the expression of a call's id, which some have."""
    return {
        "open_pattern": rf"\[TOOL_CALLS\](?P<name>[^\[\s{{]+){id}\[ARGS\]",
        "close_pattern": r"(?=\[TOOL_CALLS\])",
        "repeats": True,
        "content": "json",
        "transform": _HEADED,
    }


def _gemma(open: str, close: str, string: str) -> _Fields:
    """Return the region of Gemma's calls. ``string``: the text on each side of a string."""
    return {
        "open_pattern": open + r"call:(?P<name>[^{\s]+)",
        "close": close,
        "repeats": True,
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [[string, string]]},
        "transform": _HEADED,
    }


def _python(**how: Any) -> _Fields:
    """Return the region of Python's calls. The kind of content is ours, transformers has none for them."""
    return {"repeats": True, "content": "python-calls", **how}


# each call is JSON between tags
_TAGGED = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json", "transform": _FUNCTION}
# Qwen Coder's, where a value stands on lines of its own
_XML = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": _HEADED,
}
_GLM = {
    "open_pattern": r"<tool_call>(?P<name>[^\n<]+)",
    "close": "</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
    "transform": _HEADED,
}
# one call, with which the answer begins: Llama's chat templates take one call at a time
_ONE_CALL = {
    "open_pattern": r'(?:^\s*|<\|python_tag\|>)(?=\{"name")',
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.parameters}"}},
}
_HARMONY = _Model(
    ("<|channel|>", "<|message|>", "<|start|>"),
    "<|start|>assistant",
    {
        "open_pattern": r"(?:<\|channel\|>(?:commentary|analysis))? to=functions\.(?P<name>[^\s<]+)"
        r"(?: <\|constrain\|>json|.*?)<\|message\|>",
        "close": "<|call|>",
        "repeats": True,
        "content": "json",
        "transform": _HEADED,
    },
    content={
        "open": ["<|channel|>final<|message|>", "<|channel|>commentary<|message|>"],
        "close": ["<|end|>", "<|return|>"],
        **_CONTENT,
    },
    thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>", **_CONTENT},
)
_PYTHON_LIST = {"open_pattern": r"(?:^\s*|<\|python_start\|>)(?=\[)"}
_PYTHON_LINES = {"open": "<function_calls>", "close": "</function_calls>", "content_args": {"list": False}}
_LFM = {"open": "<|tool_call_start|>", "close": "<|tool_call_end|>"}
_MISTRAL = ["[/INST]", "[/TOOL_RESULTS]"]
_GRANITE = "<|start_of_role|>assistant<|end_of_role|>"
_LLAMA3 = "<|start_header_id|>assistant<|end_header_id|>\n\n"
_LLAMA4 = "<|header_start|>assistant<|header_end|>\n\n"
_GEMMA3, _GEMMA4 = "<start_of_turn>model\n", "<|turn>model\n"
_PYTHON_MARK = "func_name1("  # in the instructions for calls
_MODELS = (
    _Model(("[TOOL_CALLS]", "[/INST]", "[ARGS]", "[CALL_ID]"), _MISTRAL, _mistral(r"\[CALL_ID\][a-zA-Z0-9]{9}")),
    _Model(("[TOOL_CALLS]", "[/INST]", "[ARGS]"), _MISTRAL, _mistral()),
    _Model(("[TOOL_CALLS]", "[/INST]"), _MISTRAL, _listed("[TOOL_CALLS]")),
    _HARMONY,
    _Model(("<|assistant|>", "<arg_key>", "<arg_value>"), "<|assistant|>", _GLM),
    _Model(("<|assistant|>", "functools"), "<|assistant|>", _listed(r"functools(?=\[)")),
    _Model(("<|assistant|>", "<|/tool|>"), "<|assistant|>", _listed("<|tool_call|>", "<|/tool_call|>")),
    _Model(("<|im_start|>", "<function=", "<parameter="), _CHATML, _XML),
    _Model(("<|im_start|>", "<function_calls>"), _CHATML, _python(**_PYTHON_LINES)),
    _Model(("<|im_start|>", "<|tool_call_start|>"), _CHATML, _python(**_LFM)),
    _Model(("<|im_start|>", "<|tool_list_start|>"), _CHATML, _python(**_LFM)),
    _Model(("<|im_start|>", "<tool_call>"), _CHATML, _TAGGED, unlike=("<function=", "<arg_key>", "<parameter=")),
    _Model(("<|im_start|>",), _CHATML),
    _Model(("<|start_of_role|>", "<tool_call>"), _GRANITE, _TAGGED),
    _Model(("<|start_of_role|>", "<|tool_call|>"), _GRANITE, _listed("<|tool_call|>")),
    _Model(("<|start_of_role|>",), _GRANITE),
    _Model(("<|start_header_id|>", _PYTHON_MARK), _LLAMA3, _python(**_PYTHON_LIST)),
    _Model(("<|start_header_id|>", '{"name": ', '"parameters": '), _LLAMA3, _ONE_CALL, unlike=("<TOOLCALL>", "<tool_call>")),
    _Model(("<|header_start|>", _PYTHON_MARK), _LLAMA4, _python(**_PYTHON_LIST)),
    _Model(("<|header_start|>", '{"name": ', '"parameters": '), _LLAMA4, _ONE_CALL),
    _Model(
        ("<|turn>", "<|tool_call>"),
        [_GEMMA4, "<tool_response|>"],
        _gemma(r"<\|tool_call>", "<tool_call|>", '<|"|>'),
        thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    ),
    _Model(
        ("<start_of_turn>", "<start_function_call>"),
        [_GEMMA3, "<end_function_response>"],
        _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    _Model(("<start_of_turn>", _PYTHON_MARK), _GEMMA3, _python(**_PYTHON_LIST)),
    _Model(("<\uff5cAssistant\uff5c>",), "<\uff5cAssistant\uff5c>"),
)

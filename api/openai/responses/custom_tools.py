"""Custom tools: the argument of a call is one text, free or of a grammar, and travels in the model's own format of calls.

A custom tool is a function with the one parameter ``input``. Its schema is held as if the function were strict, so that the
text can always be read back. A grammar becomes the expression of that parameter; one without an expression is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...checks import shown, unicode_text
from ...constraints.constraint import LONGEST_TEXT, check_length, text_of
from ...constraints.patterns import schema_pattern
from ...errors import bad_request
from ..tools import Tool, tool_name

INPUT = "input"  # the one parameter
_HEAD = f'{{"{INPUT}":"'  # without blanks
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"  # of half a surrogate pair, which no text can have


def custom_tool(value: dict[str, Any], at: str) -> Tool:
    """Return a custom tool as a function; raise a 400 for a format that cannot be held."""
    name, description = tool_name(value.get("name"), f"{at}.name"), value.get("description")
    if not isinstance(description, str | None):
        raise bad_request(f"{at}.description is no text; give one", f"{at}.description")
    pattern, about = _format(value.get("format"), f"{at}.format")
    said = "\n\n".join(text for text in (unicode_text(description or "", f"{at}.description"), about) if text)
    printed = {"name": name, **({"description": said} if said else {}), "parameters": _schema({"type": "string"})}
    held = _schema({"type": "string", **({"pattern": f"^(?:{pattern})$"} if pattern else {})})
    return Tool(
        name, {"type": "function", "function": printed}, held, True, f"{at}.format{'.definition' if pattern else ''}"
    )


def _schema(text: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _format(value: Any, at: str) -> tuple[str, str]:
    """Return the expression of a format, empty for any text, and what the model reads about it; raise a 400."""
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return "", ""
    if kind != "grammar":
        raise bad_request(f"{at} is {shown(value)}; give an object of type text or grammar", at)
    syntax = value.get("syntax")
    if syntax not in ("lark", "regex"):
        raise bad_request(f"{at}.syntax is {shown(syntax)}; give lark or regex", f"{at}.syntax")
    where = f"{at}.definition"
    text = text_of(value.get("definition"), where)
    if syntax == "lark":
        from ...constraints.lark_pattern import lark_pattern  # a gateway starts sooner without it

        pattern = lark_pattern(text, where)
    else:
        check_length(len(text.encode()), where, LONGEST_TEXT)
        pattern = _unanchored(text)
    if fault := schema_pattern(pattern)[1]:
        raise bad_request(f"{where} {fault}", where)
    return pattern, f"Its {INPUT} follows this {'Lark grammar' if syntax == 'lark' else 'regular expression'}:\n{text}"


def _unanchored(pattern: str) -> str:
    """Return an expression for a whole text without the anchors at its ends, which mean nothing there."""
    pattern = pattern.removeprefix("^")
    escaped = (len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))) % 2 if pattern else 0
    return pattern[:-1] if pattern.endswith("$") and not escaped else pattern


@dataclass(slots=True)
class InputReader:
    """The text of a custom call, read from its arguments as they come. ``ended``: its last quote was read.

    Arguments of another form, which no grammar lets through, are passed on as they are.
    """

    ended: bool = False
    _head: str = ""  # what came before the text
    _inside: bool = False
    _other: bool = False
    _escape: str = ""  # the beginning of an escape
    _high: int = 0  # the first half of a surrogate pair

    def feed(self, arguments: str) -> str:
        """Return what a piece of the arguments adds to the text."""
        if self._other:
            return arguments
        if not self._inside:
            self._head += arguments
            arguments = self._begin()
        return arguments if self._other else self._read(arguments)

    def _begin(self) -> str:
        """Look for the beginning of the text; return what is behind it."""
        plain, at = "", 0
        while at < len(self._head) and plain != _HEAD:
            plain += "" if self._head[at] in " \n\r\t" else self._head[at]
            at += 1
        self._inside = plain == _HEAD
        self._other = not _HEAD.startswith(plain)
        return self._head if self._other else self._head[at:]

    def _read(self, text: str) -> str:
        made: list[str] = []
        at = 0
        while at < len(text) and not self.ended:
            if self._escape:
                self._escape += text[at]
                at += 1
                self._unescape(made)
                continue
            ends = [end for end in (text.find('"', at), text.find("\\", at)) if end >= 0]
            end = min(ends, default=len(text))
            if end > at:
                self._replace_unpaired(made)
                made.append(text[at:end])
            if end < len(text):
                self._escape = "\\" if text[end] == "\\" else ""
                self.ended = not self._escape
            at = end + 1
        if self.ended:
            self._replace_unpaired(made)
        return "".join(made)

    def _unescape(self, made: list[str]) -> None:
        """Read an escape, if it is complete."""
        kind = self._escape[1]
        if kind != "u":
            self._replace_unpaired(made)
            made.append(_ESCAPES.get(kind, kind))
        elif len(self._escape) < 6:
            return
        elif re.fullmatch("[0-9A-Fa-f]{4}", digits := self._escape[2:]):
            self._code(int(digits, 16), made)
        else:
            made.append(self._escape)
        self._escape = ""

    def _code(self, code: int, made: list[str]) -> None:
        if self._high and 0xDC00 <= code < 0xE000:
            made.append(chr(0x10000 + ((self._high - 0xD800) << 10) + (code - 0xDC00)))
            self._high = 0
            return
        self._replace_unpaired(made)
        if 0xD800 <= code < 0xDC00:
            self._high = code
        else:
            made.append(_REPLACEMENT if 0xDC00 <= code < 0xE000 else chr(code))

    def _replace_unpaired(self, made: list[str]) -> None:
        """Replace the first half of a pair that has no second one."""
        if self._high:
            made.append(_REPLACEMENT)
            self._high = 0


def input_arguments(text: str) -> dict[str, str]:
    """Return the arguments of a call with this text."""
    return {INPUT: text}

"""A turn template: what the turn of a model looks like, in the format of transformers' ``response_template``.

A turn has regions: thinking, content and tool calls. Each but the content has a text that opens it, and perhaps one that
closes it. Reader and grammar follow one template, so they cannot disagree. A template comes with a checkpoint, so it is
checked like a request: of the format we take delimiters that are plain texts and calls that are JSON, and name what else a
template has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

THINKING = "thinking"
CONTENT, CALLS = "content", "tool_calls"
LONGEST, MOST = 256, 16  # characters of a delimiter, delimiters of one place
_NAMES = {
    "thinking": THINKING,
    "reasoning": THINKING,
    "reasoning_content": THINKING,
    "content": CONTENT,
    "tool_calls": CALLS,
}
_OF_TEMPLATE = {"version", "defaults", "fields", "start_anchor"}
_OF_FIELD = {"open", "close", "content", "content_args", "repeats", "join", "optional", "transform", "transform_each"}


class TurnError(Exception):
    """A turn template that cannot be used; the text is the end of a sentence whose subject is the template."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The JSON of a region of calls: an object for each call, with these keys. ``many``: they stand in a list."""

    many: bool
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a turn. ``opens`` is empty for the content, ``closes`` for a region that lasts until the turn ends."""

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    strip: bool = True  # blanks around its text do not count
    repeats: bool = False
    calls: CallForm | None = None


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """The regions of a turn by name. ``anchors``: texts of the prompt behind which the turn begins."""

    anchors: tuple[str, ...]
    regions: Mapping[str, Region]

    def begun(self, prompt: str) -> str:
        """Return the part of the turn that the prompt has already."""
        ends = [at + len(anchor) for anchor in self.anchors if (at := prompt.rfind(anchor)) >= 0]
        return prompt[max(ends) :] if ends else ""

    @property
    def delimiters(self) -> set[str]:
        """The texts that open or close a region."""
        return {text for region in self.regions.values() for text in (*region.opens, *region.closes)}


def read_template(value: Any) -> TurnTemplate:
    """Return the template of a JSON value. Raise TurnError."""
    if not isinstance(value, dict):
        raise TurnError("is no object; give one with start_anchor and fields")
    _only(value, _OF_TEMPLATE, "")
    if value.get("version", 1) != 1:
        raise TurnError(f"has version {str(value['version'])[:20]}; give 1")
    fields = value.get("fields")
    if not isinstance(fields, dict) or not fields:
        raise TurnError("has no fields; give thinking, content or tool_calls")
    regions: dict[str, Region] = {}
    for name, field in fields.items():
        if name not in _NAMES or _NAMES[name] in regions:
            raise TurnError(f"has the field {str(name)[:60]!r}; give thinking, content and tool_calls, each once")
        regions[_NAMES[name]] = _region(_NAMES[name], field)
    if CONTENT not in regions or regions[CONTENT].opens or regions[CONTENT].closes:
        raise TurnError("has no field content without open and close; give one")
    return TurnTemplate(_texts(value, "start_anchor", ""), regions)


def _region(name: str, field: Any) -> Region:
    where = f"fields.{name}"
    if not isinstance(field, dict):
        raise TurnError(f"has {where} that is no object; give one")
    _only(field, _OF_FIELD, f"{where}.")
    arguments = field.get("content_args") or {}
    if not isinstance(arguments, dict) or arguments.keys() - {"strip"}:
        raise TurnError(f"has {where}.content_args; only strip can be used")
    kind = field.get("content", "text")
    if kind != ("json" if name == CALLS else "text"):
        raise TurnError(f"has {where}.content {str(kind)[:20]!r}; only JSON calls and plain texts can be used")
    opens = _texts(field, "open", where) if name != CONTENT or "open" in field else ()
    closes = _texts(field, "close", where) if "close" in field else ()
    if name == THINKING and not closes:
        raise TurnError(f"has {where} without close, so no content would follow; give one")
    calls = _form(field.get("transform"), field.get("transform_each", False), where) if name == CALLS else None
    return Region(name, opens, closes, bool(arguments.get("strip", True)), bool(field.get("repeats", False)), calls)


def _form(transform: Any, each: Any, where: str) -> CallForm:
    """Return the form of calls that a transform turns into OpenAI's."""
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}" and not each:
        return CallForm(False, "name", "arguments")
    begin = "{" if each else "{content."
    keys = []
    for key in ("name", "arguments"):
        path = function.get(key) if isinstance(function, dict) else None
        if not isinstance(path, str) or not (path.startswith(begin) and path.endswith("}")):
            break
        keys.append(path[len(begin) : -1])
    if len(keys) != 2 or not all(key.isidentifier() for key in keys) or keys[0] == keys[1]:
        raise TurnError(f"has {where}.transform that does not name function.name and function.arguments; give both")
    return CallForm(bool(each), *keys)


def _texts(holder: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Return the texts of a delimiter, which is one text or a list of them."""
    name = f"{where}.{key}" if where else key
    given = holder.get(key)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 1 <= len(texts) <= MOST or not all(isinstance(text, str) for text in texts):
        raise TurnError(f"has no {name}; give a text, or a list of at most {MOST}")
    if not all(1 <= len(text) <= LONGEST for text in texts):
        raise TurnError(f"has an empty or long text in {name}; give 1 to {LONGEST} characters")
    return tuple(dict.fromkeys(texts))


def _only(given: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(str(key) for key in given.keys() - known):
        raise TurnError(f"has {where}{unknown[0][:60]}, which is not supported; there are {', '.join(sorted(known))}")

"""A turn template: what the turn of a model looks like, in the format of transformers' ``response_template``.

A turn has regions: thinking, content and tool calls. A region has texts that open it, and perhaps some that close it. A
content without them is all other text; if it has some, text outside of all regions does not count. Reader and grammar
follow one template, so they cannot disagree. A template comes with a checkpoint, so it is checked like a request: what of
the format is not supported is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .call_forms import CallForm, read_form
from .call_forms import TurnError as TurnError
from .patterns import Blanks, Part, Pattern, PatternError, read_pattern

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
_OF_FIELD = {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"}
_OF_FIELD |= {"transform", "transform_each"}


@dataclass(frozen=True, slots=True)
class TurnRegion:
    """A part of a turn.

    ``opens`` is empty for a content that is all other text, ``closes`` for a region that lasts until the turn ends.
    ``ahead``: a text that follows each of ``opens``, and is part of the region. ``starts``: the region is open if an answer
    begins with ``ahead``. ``closes_ahead``: a text that closes it is not consumed.
    """

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    strip: bool = True  # blanks around its text do not count
    repeats: bool = False
    calls: CallForm | None = None
    ahead: str = ""
    starts: bool = False
    closes_ahead: bool = False

    @property
    def entries(self) -> tuple[str, ...]:
        """The texts by which the region is recognized, wherever they stand."""
        return tuple(text + self.ahead for text in self.opens)


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """The regions of a turn by name. ``anchors``: texts of the prompt behind which the turn begins."""

    anchors: tuple[str, ...]
    regions: Mapping[str, TurnRegion]

    def begun(self, prompt: str) -> str:
        """Return the part of the turn that the prompt has already."""
        ends = [at + len(anchor) for anchor in self.anchors if (at := prompt.rfind(anchor)) >= 0]
        return prompt[max(ends) :] if ends else ""

    @property
    def delimiters(self) -> set[str]:
        """The texts that are no words of the model: around regions, and inside of calls."""
        regions = self.regions.values()
        made = {text for region in regions for text in (*region.entries, *region.closes)}
        made |= {text for region in regions if region.calls is not None for text in region.calls.texts()}
        return made | (set(self.anchors) if self.regions[CONTENT].opens else set())


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
    regions: dict[str, TurnRegion] = {}
    for name, field in fields.items():
        if name not in _NAMES or _NAMES[name] in regions:
            raise TurnError(f"has the field {str(name)[:60]!r}; give thinking, content and tool_calls, each once")
        regions[_NAMES[name]] = _region(_NAMES[name], field)
    if CONTENT not in regions:
        raise TurnError("has no field content; give one")
    return TurnTemplate(_texts(value, "start_anchor", ""), regions)


def _region(name: str, field: Any) -> TurnRegion:
    where = f"fields.{name}"
    if not isinstance(field, dict):
        raise TurnError(f"has {where} that is no object; give one")
    _only(field, _OF_FIELD, f"{where}.")
    opening, closing = _opening(field, where, heads=name == CALLS), _closing(field, where)
    repeats = bool(field.get("repeats", False))
    if name == CALLS:
        if not opening.opens and not opening.starts:
            raise TurnError(f"has {where} without open; give a text")
        form = read_form(field, opening.head, closing.tail, where)
        return TurnRegion(
            name, opening.opens, closing.closes, True, repeats, form, opening.ahead, opening.starts, closing.closes_ahead
        )
    arguments, kind = field.get("content_args") or {}, field.get("content", "text")
    if not isinstance(arguments, dict) or arguments.keys() - {"strip"}:
        raise TurnError(f"has {where}.content_args; only strip can be used")
    if kind != "text":
        raise TurnError(f"has {where}.content {str(kind)[:20]!r}; only a text can be used")
    if name == THINKING and not (opening.opens and closing.closes):
        missing = "close, so no content would follow" if opening.opens else "open"
        raise TurnError(f"has {where} without {missing}; give one")
    if opening.starts or opening.ahead or closing.tail or closing.closes_ahead:
        raise TurnError(f"has {where} with an expression that only tool_calls can have; give texts")
    return TurnRegion(name, opening.opens, closing.closes, bool(arguments.get("strip", True)), repeats)


@dataclass(frozen=True, slots=True)
class _Opening:
    """The texts that open a region. ``head``: what stands behind it before the region's content."""

    opens: tuple[str, ...] = ()
    head: tuple[Part, ...] = ()
    ahead: str = ""
    starts: bool = False


def _opening(field: dict[str, Any], where: str, *, heads: bool) -> _Opening:
    if "open" in field:
        if "open_pattern" in field:
            raise TurnError(f"has {where}.open and open_pattern; give one")
        return _Opening(_texts(field, "open", where))
    if "open_pattern" not in field:
        return _Opening()
    at = f"{where}.open_pattern"
    found = _pattern(field["open_pattern"], at)
    starts = any(way.start for way in found.ways)
    bodies = [_bare(way.parts) for way in found.ways if not way.start]
    if any(_bare(way.parts) for way in found.ways if way.start) or (starts and not found.ahead):
        raise TurnError(f"has {at} with ^ before more than (?=...); give a text to look for")
    if not all(body and isinstance(body[0], str) for body in bodies):
        raise TurnError(f"has {at} that begins with no text; give one")
    tails = {body[1:] for body in bodies} or {()}
    if len(tails) > 1 or (tails != {()} and (starts or found.ahead or not heads)):
        raise TurnError(f"has {at} with parts that differ or are not supported; give one way behind the first text")
    opens = _limited([str(body[0]) for body in bodies], at) if bodies else ()
    return _Opening(opens, tails.pop(), found.ahead, starts)


@dataclass(frozen=True, slots=True)
class _Closing:
    """The texts that close a region. ``tail``: a text before it."""

    closes: tuple[str, ...] = ()
    tail: str = ""
    closes_ahead: bool = False


def _closing(field: dict[str, Any], where: str) -> _Closing:
    if "close" in field:
        if "close_pattern" in field:
            raise TurnError(f"has {where}.close and close_pattern; give one")
        return _Closing(_texts(field, "close", where))
    if "close_pattern" not in field:
        return _Closing()
    at = f"{where}.close_pattern"
    found = _pattern(field["close_pattern"], at)
    if found.ahead and all(not way.parts for way in found.ways):
        return _Closing((found.ahead,), closes_ahead=True)
    ways = [[part for part in _bare(way.parts) if not isinstance(part, Blanks)] for way in found.ways]
    if found.ahead or not all(way and all(isinstance(part, str) for part in way) for way in ways):
        raise TurnError(f"has {at} with parts that are not supported; give texts")
    tails = {tuple(way[:-1]) for way in ways}
    if len(tails) > 1 or len(tail := tails.pop()) > 1:
        raise TurnError(f"has {at} with several texts; give at most two")
    return _Closing(_limited([str(way[-1]) for way in ways], at), str(tail[0]) if tail else "")


def _pattern(given: Any, at: str) -> Pattern:
    if not isinstance(given, str):
        raise TurnError(f"has no {at}; give an expression")
    try:
        return read_pattern(given)
    except PatternError as error:
        raise TurnError(f"has {at} that {error}") from None


def _bare(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts without blanks before them, which do not count in the text."""
    return parts[1:] if parts and isinstance(parts[0], Blanks) else parts


def _texts(holder: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Return the texts of a delimiter, which is one text or a list of them."""
    name = f"{where}.{key}" if where else key
    given = holder.get(key)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 1 <= len(texts) <= MOST or not all(isinstance(text, str) for text in texts):
        raise TurnError(f"has no {name}; give a text, or a list of at most {MOST}")
    return _limited(texts, name)


def _limited(texts: list[str], name: str) -> tuple[str, ...]:
    if not all(1 <= len(text) <= LONGEST for text in texts):
        raise TurnError(f"has an empty or long text in {name}; give 1 to {LONGEST} characters")
    return tuple(dict.fromkeys(texts))


def _only(given: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(str(key) for key in given.keys() - known):
        raise TurnError(f"has {where}{unknown[0][:60]}, which is not supported; there are {', '.join(sorted(known))}")

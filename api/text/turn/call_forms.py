"""The forms in which models write tool calls, as a turn template describes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .patterns import Blanks, CharacterRun, Gap, Part, PatternError, Way, read_pattern

NAME = "name"
KEY, VALUE = "key", "value"
MOST_DELIMITERS, LONGEST_DELIMITER = 4, 64
LINE, ALL = "line", "all"
_JSON_OR_TEXT = {"name": "json", "args": {"allow_non_json": True}}


class TurnError(Exception):
    """A turn template that cannot be used; the text is the end of a sentence whose subject is the template."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Calls that are JSON: an object for each call, with these keys. ``many``: they stand in a list."""

    many: bool
    name: str
    arguments: str

    def texts(self) -> Iterator[str]:
        """Yield the texts that stand around names and values."""
        yield from ()


@dataclass(frozen=True, slots=True)
class NamedForm:
    """A call whose name stands before its arguments, which are one object.

    ``head``: what stands between the text that opens the call and the object. ``strings``: the pairs of texts around strings
    that are not JSON's. ``bare_keys``: keys are without quotes.
    """

    head: tuple[Part, ...]
    strings: tuple[tuple[str, str], ...] = ()
    bare_keys: bool = False

    def texts(self) -> Iterator[str]:
        """Yield the texts that stand around names and values."""
        yield from _texts(self.head)
        for pair in self.strings:
            yield from pair

    @property
    def is_json(self) -> bool:
        """True if the arguments are JSON as they stand."""
        return not self.strings and not self.bare_keys


@dataclass(frozen=True, slots=True)
class TagForm:
    """A call whose name stands before its arguments, each of which is a text between tags.

    ``before``, ``key``, ``middle``, ``after``: the parts around an argument's name and value. ``strip``: the blanks around a
    value that do not count (none, a new line on each side, or all). ``tail``: ends the arguments. ``json``: a text that is
    JSON is read as such, even a string.
    """

    head: tuple[Part, ...]
    before: str
    key: CharacterRun
    middle: tuple[Part, ...]
    after: str
    strip: str = ""
    tail: str = ""
    json: bool = False

    def texts(self) -> Iterator[str]:
        """Yield the texts that stand around names and values."""
        yield from (*_texts(self.head), self.before, *_texts(self.middle), self.after)
        if self.tail:
            yield self.tail


@dataclass(frozen=True, slots=True)
class PythonForm:
    """Calls that are Python's, with arguments by name: in a list, or, without ``listed``, each in a line."""

    listed: bool

    def texts(self) -> Iterator[str]:
        """Yield the texts that stand around names and values."""
        yield from ()


CallForm = JsonForm | NamedForm | TagForm | PythonForm


def _texts(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Gap):
            yield from part.writes


def read_form(field: dict[str, Any], head: tuple[Part, ...], tail: str, where: str) -> CallForm:
    """Return the form of a field's calls. Raise TurnError. ``tail``: a text before the one that closes the region."""
    kind, arguments = field.get("content", "text"), field.get("content_args") or {}
    if not isinstance(arguments, dict):
        raise TurnError(f"has {where}.content_args that are no object; give one")
    named = any(isinstance(part, CharacterRun) and part.name == NAME for part in head)
    transform, each = field.get("transform"), field.get("transform_each", False)
    if kind == "python-calls" and not head and not tail:
        _only(arguments, {"list"}, where)
        return PythonForm(bool(arguments.get("list", True)))
    if kind not in ("json", "xml-inline"):
        raise TurnError(f"has {where}.content {str(kind)[:20]!r}; give json, xml-inline or python-calls")
    if not named:
        if kind != "json" or head or tail:
            raise TurnError(f"has {where}.open_pattern without a group {NAME}; give (?P<name>...)")
        _only(arguments, {"strip"}, where)
        return _keys(transform, each, where)
    function = transform.get("function") if isinstance(transform, dict) else None
    if each or function != {"name": "{name}", "arguments": "{content}"}:
        raise TurnError(f"has {where}.transform that does not name function.name and function.arguments; give both")
    if kind == "xml-inline":
        return _tags(arguments, head, tail, where)
    if tail:
        raise TurnError(f"has {where}.close_pattern with more than one text; give one")
    _only(arguments, {"strip", "unquoted_keys", "string_delims"}, where)
    return NamedForm(head, _pairs(arguments.get("string_delims", []), where), bool(arguments.get("unquoted_keys", False)))


def _only(arguments: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(str(key) for key in arguments.keys() - known):
        raise TurnError(f"has {where}.content_args.{unknown[0][:60]}; only {', '.join(sorted(known))} can be used")


def _keys(transform: Any, each: Any, where: str) -> JsonForm:
    """Return the form of JSON calls that a transform turns into OpenAI's."""
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}" and not each:
        return JsonForm(False, "name", "arguments")
    begin = "{" if each else "{content."
    keys = []
    for key in ("name", "arguments"):
        path = function.get(key) if isinstance(function, dict) else None
        if not isinstance(path, str) or not (path.startswith(begin) and path.endswith("}")):
            break
        keys.append(path[len(begin) : -1])
    if len(keys) != 2 or not all(key.isidentifier() for key in keys) or keys[0] == keys[1]:
        raise TurnError(f"has {where}.transform that does not name function.name and function.arguments; give both")
    return JsonForm(bool(each), *keys)


def _pairs(given: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of texts around strings."""
    made: list[tuple[str, str]] = []
    for pair in given if isinstance(given, list) else [None]:
        texts: list[Any] = pair if isinstance(pair, list) and len(pair) == 2 else [None]
        if not all(isinstance(text, str) and 0 < len(text) <= LONGEST_DELIMITER for text in texts):
            raise TurnError(f"has {where}.content_args.string_delims; give pairs of 1 to {LONGEST_DELIMITER} characters")
        made.append((texts[0], texts[1]))
    if len(made) > MOST_DELIMITERS:
        raise TurnError(f"has more than {MOST_DELIMITERS} pairs in {where}.content_args.string_delims; give fewer")
    return tuple(made)


def _tags(arguments: dict[str, Any], head: tuple[Part, ...], tail: str, where: str) -> TagForm:
    _only(arguments, {"tag_pattern", "value_parser"}, where)
    parser = arguments.get("value_parser")
    if parser not in (None, {"name": "text"}, _JSON_OR_TEXT):
        raise TurnError(f"has {where}.content_args.value_parser; leave it out, or give json with allow_non_json")
    way = _one_way(arguments.get("tag_pattern"), f"{where}.content_args.tag_pattern")
    place = next((i for i, part in enumerate(way.parts) if isinstance(part, Gap) and part.name == VALUE), -1)
    before, key, *middle = way.parts[:place] if place >= 3 else ("", None)
    after = [*way.parts[place + 1 :]]
    if not isinstance(before, str) or not isinstance(key, CharacterRun) or key.name != KEY or not isinstance(middle[0], str):
        raise TurnError(f"has {where}.content_args.tag_pattern that is not a text, (?P<key>...), texts and (?P<value>.*?)")
    strip = _strip(middle[-1], after[0])
    if strip:
        middle.pop()
        after.pop(0)
    if len(after) != 1 or not isinstance(after[0], str) or any(isinstance(part, CharacterRun | Gap) for part in middle):
        raise TurnError(f"has {where}.content_args.tag_pattern with parts that are not supported")
    return TagForm(head, before, key, tuple(middle), after[0], strip, tail, parser == _JSON_OR_TEXT)


def _strip(before: Part, after: Part) -> str:
    """Return which blanks between these two parts do not count."""
    if before != after or not isinstance(before, Blanks):
        return ""
    return LINE if before.newline else ALL


def _one_way(given: Any, where: str) -> Way:
    """Return the one way to write an expression. Raise TurnError."""
    if not isinstance(given, str):
        raise TurnError(f"has no {where}; give an expression")
    try:
        found = read_pattern(given)
    except PatternError as error:
        raise TurnError(f"has {where} that {error}") from None
    if len(found.ways) != 1 or found.ahead or found.ways[0].start:
        raise TurnError(f"has {where} with several ways to be written; give one")
    return found.ways[0]

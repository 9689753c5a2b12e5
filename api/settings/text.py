"""The settings as text: a TOML file for ``--config``.

It is made from the fields of ``Settings``, their defaults, and the texts and groups beside their types.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from ...actors.settings.part import Mark
from ...actors.settings.settings import NAMES, SETTINGS, Settings

APPS = "applications"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One setting. ``default`` of a dictionary is empty."""

    name: str
    default: Any
    meaning: str
    group: str
    secret: bool


def entries() -> Iterator[Entry]:
    """Yield all settings in the order of the record."""
    for name in NAMES:
        setting = SETTINGS[name]
        yield Entry(name, setting.default, setting.meaning, setting.group, Mark.SECRET in setting.marks)


def as_toml(settings: Settings) -> str:
    """Return every setting with its meaning, its value and, if it differs, its default. API keys are not shown.

    TOML requires tables to come last, so a group with tables appears twice.
    """
    everything = [*entries()]
    plain = [one for one in everything if not isinstance(one.default, dict)]
    tables = [one for one in everything if isinstance(one.default, dict)]
    return "\n\n".join([*_parts(plain, settings), *_parts(tables, settings)]) + "\n"


def _parts(shown: Iterable[Entry], settings: Settings) -> Iterator[str]:
    """Yield each group's heading, then its settings."""
    for group, members in groupby(shown, attrgetter("group")):
        yield f"# {group}\n# {'-' * len(group)}"
        for entry in members:
            yield "\n".join([f"# {entry.meaning}", *_lines(entry, settings)])


def _lines(entry: Entry, settings: Settings) -> Iterator[str]:
    """Yield the lines of one setting below its meaning."""
    value = settings.value(entry.name)
    if not isinstance(entry.default, dict):
        changed = f"  # default: {_literal(entry.default)}" if value != entry.default else ""
        yield f"{entry.name} = {_literal(value)}{changed}"
        return
    if entry.secret and value:
        yield f"# {len(value)} given, not shown"
    yield f"[{entry.name}]"
    for key, one in value.items() if not entry.secret else ():
        yield f"{_quoted(key)} = {_literal(_with_defaults(key, one, settings) if entry.name == APPS else one)}"


def _with_defaults(name: str, path: str, settings: Settings) -> Any:
    """Return an application as in a file: its path, or a table if its requests have defaults."""
    defaults = settings.models.application_defaults.get(name)
    return {"path": path, **json.loads(defaults)} if defaults else path


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)} = {_literal(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)  # JSON's text, numbers, booleans and lists are valid TOML, too


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)

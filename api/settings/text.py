"""The settings as text: a TOML file that ``--config`` takes, and the table of docs/serving.md.

Both come from the fields of ``Settings``, their defaults and the text beside their types; nothing is told twice.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Any

from ...actors.config import Settings

APPS = "applications"
PARTS = frozenset({"application_defaults"})  # fields of the record that are given as parts of ``applications``
_SECRET = frozenset({"api_keys", "admin_keys"})


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One setting. ``default`` of a dictionary is empty."""

    name: str
    default: Any
    meaning: str


def entries() -> Iterator[Entry]:
    """All settings, in the order of the record."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    for field in (one for one in dataclasses.fields(Settings) if one.name not in PARTS):
        yield Entry(field.name, getattr(defaults, field.name), hints[field.name].__metadata__[0])


def as_toml(settings: Settings) -> str:
    """Every setting with its meaning, its value and, where another, its default. Keys of the API are not shown."""
    plain, tables = [], []
    for entry in entries():
        value = getattr(settings, entry.name)
        lines = [f"# {entry.meaning}"]
        if isinstance(entry.default, dict):
            shown = {} if entry.name in _SECRET else value
            hidden = [f"# {len(value)} given, not shown"] if entry.name in _SECRET and value else []
            made = {key: _with_defaults(key, one, settings) for key, one in shown.items()} if entry.name == APPS else shown
            lines += hidden + [f"[{entry.name}]"] + [f"{_quoted(key)} = {_literal(one)}" for key, one in made.items()]
            tables.append("\n".join(lines))
        else:
            changed = f"  # default: {_literal(entry.default)}" if value != entry.default else ""
            plain.append("\n".join([*lines, f"{entry.name} = {_literal(value)}{changed}"]))
    return "\n\n".join([*plain, *tables]) + "\n"


def as_table() -> str:
    """Markdown."""
    rows = ["| name | default | meaning |", "| --- | --- | --- |"]
    for entry in entries():
        name = f"{entry.name}.NAME" if isinstance(entry.default, dict) else entry.name
        default = "" if entry.default in ("", {}) else _literal(entry.default).strip('"')
        rows.append(f"| `{name}` | {default} | {entry.meaning} |")
    return "\n".join(rows)


def _with_defaults(name: str, path: str, settings: Settings) -> Any:
    """Return an application as the file has it: its path, or a table where its requests have defaults."""
    defaults = settings.application_defaults.get(name)
    return {"path": path, **json.loads(defaults)} if defaults else path


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)} = {_literal(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)  # what JSON writes of text, numbers, booleans and lists is TOML too


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)

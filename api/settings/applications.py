"""The setting ``applications``: for each model a path, or a table of path, base and defaults of its requests.

This module merges the paths and tables of a file, of flags and of ``--set applications.NAME.KEY=value`` into one entry for
each model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...actors.app_roots import check_name
from ...actors.settings.errors import SettingsError
from ...policies.nearest import suggestion
from ...policies.requests.refusal import RequestRefused

_TEXTS = ("path", "base")


class Typed(str):
    """A value from a command line, where all values are text."""


def take_applications(values: dict[str, Any], named: Mapping[str, str]) -> None:
    """Put the fields of ``Settings`` that describe applications into ``values``. ``named``: paths of the command line.

    Raise SettingsError, naming the entry and its key.
    """
    given = {**named, **values.get("applications", {})}
    for name in given.keys() - named.keys():
        check_model_id(name, f"applications.{name[:60]}")
    if not any(isinstance(value, dict) or (isinstance(value, Typed) and "." in name) for name, value in given.items()):
        values["applications"] = {name: _text(f"applications.{name}", path) for name, path in given.items()}
        return
    from ..errors import ApiError  # imports aiohttp, so only if needed
    from ..openai.foreign_fields import ADDING
    from ..openai.model_defaults import DEFAULTS, checked_defaults, value_of

    known = (*_TEXTS, *(one.name for one in DEFAULTS))
    paths = dict[str, str]()
    bases = dict[str, str]()
    defaults = dict[str, str]()
    for name, table in _tables(given, known).items():
        where = f"applications.{name}"
        for key in table.keys() - {*known}:
            elsewhere = ADDING[key].named if key in ADDING else ""
            meant = f"did you mean {elsewhere}?" if elsewhere in known else suggestion(key, sorted(known))
            raise SettingsError(f"there is no setting {where}.{key}; {meant}")
        if "path" in table:
            paths[name] = _text(f"{where}.path", table["path"])
        elif not values.get("adapters"):  # with an adapter folder, the model may be in it
            raise SettingsError(f"{where} has no path; give {where}.path, a checkpoint folder or hub id")
        if "base" in table:
            bases[name] = _text(f"{where}.base", table["base"])
        own = {key: value for key, value in table.items() if key not in _TEXTS}
        own = {key: value_of(key, str(one)) if isinstance(one, Typed) else one for key, one in own.items()}
        try:
            defaults[name] = checked_defaults(own, f"{where}.")
        except ApiError as error:
            raise SettingsError(error.message) from None
    values["applications"] = paths
    values["bases"] = {**bases, **values.get("bases", {})}
    values["application_defaults"] = {name: text for name, text in defaults.items() if text}


def _tables(given: Mapping[str, Any], known: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the entries of each model, in the order in which models were first named.

    A typed name with a dot is a model and one of its keys. If no such key exists, it is the name of a model where the value
    is an existing folder, or could be a path or hub id while no model of the shorter name is given.
    """
    tables: dict[str, dict[str, Any]] = {}
    models = {*given} | {name for name, key in map(_parts, given) if key in known}
    for entry, value in given.items():
        name, key = _parts(entry)
        if isinstance(value, dict):
            tables.setdefault(entry, {}).update(value)
        elif isinstance(value, Typed) and name and (key in known or not _may_be_model(name in models, value)):
            tables.setdefault(name, {})[key] = value
        else:
            tables.setdefault(entry, {})["path"] = value
    return tables


def _parts(entry: str) -> tuple[str, str]:
    """Return an entry's name as a model and a key; the model is "" if the name has no dot."""
    name, _, key = entry.rpartition(".")
    return name, key


def _may_be_model(shorter: bool, value: str) -> bool:
    """Return whether a typed value may be the path of a model whose id has a dot.

    shorter: there is a model with the part before the dot.
    """
    return Path(value).expanduser().is_dir() or ("/" in value and not shorter)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{name} is {value!r}; give text")
    return str(value)


def check_model_id(name: str, where: str) -> None:
    """Check an id by the rule for models added at run time. The name of a folder that is given alone is taken unchecked."""
    try:
        check_name(name)
    except RequestRefused as refused:
        raise SettingsError(f"{where}: {refused.message}") from None

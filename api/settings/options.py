"""``Settings`` from a command line and a configuration file: defaults < file < flags < ``--set``.

Every value passes the same conversion by its field's type, whatever its source. A wrong one is a ``SettingsError`` of one
sentence. No checkpoint is opened, and nothing heavy is imported.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...actors.settings.errors import SettingsError
from ...actors.settings.part import Mark
from ...actors.settings.settings import SETTINGS, Settings, check_name
from ...gpu.regular_file import read_plain
from ...policies.binary_size import parse_size
from .applications import Typed, check_model_id, take_applications
from .text import APPS

Values = dict[str, Any]


def make_settings(
    model: str | None,
    *,
    apps: Sequence[str] = (),
    zoo: str | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    config: str | None = None,
    key_file: str | None = None,
    need_model: bool = True,
) -> Settings:
    """Return the settings; raise SettingsError.

    ``model``: folder, hub id, or application of the folder ``zoo``. ``apps``: ``NAME=PATH``. ``sets``: ``key=value``.
    """
    values: Values = read_config(Path(config)) if config else {}
    for name, text in (flags or {}).items():
        values[name] = convert(name, text)
    for text in sets:
        _assign(values, text)
    named = _of_zoo(zoo, model) if zoo is not None else {model_id(model): model} if model else {}
    take_applications(values, _with_apps(named, apps))
    if need_model and not values["applications"]:
        raise SettingsError("no model is given; name a checkpoint folder or a hub id, or try 'blockwright demo --serve'")
    if key_file:
        for name, keys in zip(("api_keys", "admin_keys"), read_keys(Path(key_file)), strict=True):
            values[name] = {**values.get(name, {}), **keys}
    return Settings(**values)


def read_config(path: Path) -> Values:
    """Return the values of a TOML file whose keys are the fields of ``Settings``."""
    try:
        table = tomllib.loads(read_plain(path))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}); check --config") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid TOML ({error}); correct it") from None
    return {check_name(name): convert(name, value) for name, value in table.items()}


def read_keys(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return ordinary keys and admin keys, each with its tenant, from a file.

    Lines are ``key``, ``key tenant`` or ``key tenant admin``. A key without a tenant is a tenant of its own. Empty lines and
    lines that begin with # are skipped.
    """
    try:
        lines = read_plain(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"{path} cannot be read ({reason}); check --api-key-file") from None
    keys: dict[str, str] = {}
    admins: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 3 or (len(words) == 3 and words[2] != "admin"):
            raise SettingsError(
                f"line {number} of {path} has {len(words)} words; write a key, a key and its tenant, or both and admin"
            )
        if words[0] in keys or words[0] in admins:
            raise SettingsError(f"line {number} of {path} repeats a key; give each key once")
        tenant = words[1] if len(words) > 1 else "key-" + hashlib.sha256(words[0].encode()).hexdigest()[:8]
        (admins if len(words) == 3 else keys)[words[0]] = tenant
    if not keys and not admins:
        raise SettingsError(f"{path} holds no key; write one on each line, or leave out --api-key-file")
    return keys, admins


def convert(name: str, value: Any) -> Any:
    """Return a value (text, or from TOML) in the type of field ``name``, which may be ``field.entry``."""
    field, _, entry = name.partition(".")
    kind = SETTINGS[check_name(field)].kind
    if field == APPS and isinstance(value, dict):
        return dict(value)  # paths and tables (see ``take_applications``)
    if typing.get_origin(kind) is dict:
        inner = typing.get_args(kind)[1]
        if entry:
            return _scalar(name, inner, value)
        if not isinstance(value, dict):
            raise SettingsError(f"{name} is {value!r}; give entries as {field}.NAME=value")
        return {key: _scalar(f"{name}.{key}", inner, one) for key, one in value.items()}
    if entry:
        raise SettingsError(f"{name} names an entry, but {field} is a single value; set {field}")
    return _scalar(field, kind, value)


def _scalar(name: str, kind: type, value: Any) -> Any:
    text = value if isinstance(value, str) else None
    if kind is str and text is not None:
        return text
    if kind is bool:
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in ("true", "false", "yes", "no", "on", "off", "1", "0"):
            return text.lower() in ("true", "yes", "on", "1")
        raise SettingsError(f"{name} is {value!r}; give true or false")
    if kind is int:
        return _integer(name, value)
    if kind is float and not isinstance(value, bool):
        try:
            return _finite(name, float(value))
        except (TypeError, ValueError):
            pass
    wanted = "text" if kind is str else _range(name) or "a number"
    raise SettingsError(f"{name} is {value!r}; give {wanted}")


def _range(name: str) -> str:
    """Return the numbers that a setting, or each entry of it, may be; "": any."""
    return SETTINGS[name.partition(".")[0]].range


def _finite(name: str, value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(name)
    return value


def _integer(name: str, value: Any) -> int:
    size_is_meant = name in SETTINGS and Mark.BYTES in SETTINGS[name].marks
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if size_is_meant and (size := parse_size(value)) is not None:
            return size
        if re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
            return int(value)
    wanted = "a number of bytes such as 2GiB" if size_is_meant else ", ".join(filter(None, ("an integer", _range(name))))
    raise SettingsError(f"{name} is {value!r}; give {wanted}")


def _assign(values: Values, text: str) -> None:
    """Put ``key=value`` or ``field.entry=value`` into ``values``."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise SettingsError(f"--set {text!r} has no '='; write --set key=value")
    field, _, entry = name.partition(".")
    if field in SETTINGS and Mark.SECRET in SETTINGS[field].marks:
        raise SettingsError(f"{field} cannot be given with --set, where other users see them; use --api-key-file")
    made = convert(name, value)
    if entry:
        before = values.get(field, {})
        table = field == APPS and isinstance(before.get(entry), dict)  # this is the path of a table
        made = Typed(made) if field == APPS else made
        values[field] = {**before, f"{entry}.path" if table else entry: made}
    else:
        values[field] = made


def _with_apps(named: dict[str, str], apps: Sequence[str]) -> dict[str, str]:
    for text in apps:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise SettingsError(f"--app {text!r} is not NAME=PATH; write for instance --app tuned=/models/tuned")
        check_model_id(name, f"--app {text!r}")
        if name in named:
            raise SettingsError(f"the model id {name!r} is given twice; choose another NAME for --app {text}")
        named[name] = path
    return named


def _of_zoo(folder: str, name: str | None) -> dict[str, str]:
    """Return all applications of a zoo, or one."""
    from ...zoo.errors import ZooError
    from ...zoo.zoo import Zoo

    try:
        zoo = Zoo(Path(folder).expanduser().absolute())
        return {one: str(zoo.folder(one)) for one in ([name] if name else zoo.names())}
    except (ZooError, OSError, RuntimeError) as error:
        raise SettingsError(str(error)) from None


def model_id(model: str) -> str:
    """Return the folder's name, or the hub id without its revision."""
    path = Path(model).expanduser()
    local = os.path.exists(path) or model.startswith((".", "/", "~")) or model.endswith("/")
    return (path.resolve().name or model) if local else model.partition("@")[0]

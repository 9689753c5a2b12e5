"""Changes file: what was added, replaced and removed while a server ran, kept for its next start.

Owns the file's form. A crash at any moment leaves the old file or the new one. Unreadable entries are left as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gpu.regular_file import read_plain
from ..gpu.whole_file import write_whole
from ..policies.cluster.adapter_base import WholeModel
from ..policies.requests.refusal import RequestRefused
from .app_roots import check_name
from .gateway.port import NewApplication
from .settings.models import ModelSettings

NAME = ".blockwright-apps.json"  # in the folder of the setting ``adapters``
VERSION = 1


@dataclass(frozen=True, slots=True)
class Changes:
    """The content of a changes file.

    ``added`` is by model id. ``removed`` has ids of models that are no longer served although a setting or a folder has
    them. ``default`` is the id that stands for requests without a model, if it was changed at run time. ``faults`` has a
    sentence for each unreadable entry.
    """

    added: dict[str, NewApplication] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    default: str = ""
    faults: tuple[str, ...] = ()


class ChangesFile:
    """Changes file of one server at a time (see the module). Its methods are called on threads, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, models: ModelSettings) -> ChangesFile | None:
        """Return the file that the settings name, or None."""
        if models.apps_file:
            return cls(Path(models.apps_file).expanduser().absolute())
        return cls(Path(models.adapters).expanduser().absolute() / NAME) if models.adapters else None

    def read(self) -> Changes:
        """Return the readable part of the file; nothing if there is no file."""
        try:
            raw = self._raw()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return Changes(faults=(f"{self.path} cannot be read ({reason}); nothing of it is served, and it is kept",))
        added, faults = dict[str, NewApplication](), list[str]()
        for name, entry in raw["added"].items():
            try:
                added[name] = _entry(name, entry)
            except ValueError as error:
                faults.append(f"{self.path}: the entry {name[:60]!r} is not served, but kept: {error}")
        default = raw["default"] if isinstance(raw["default"], str) else ""
        return Changes(added, frozenset(map(str, raw["removed"])), default, tuple(faults))

    def add(self, new: NewApplication, base: WholeModel | None) -> None:
        """Record an addition or a new version. ``base`` is the model it was put on. Raises OSError if writing fails."""
        raw = self._for_change()
        entry: dict[str, Any] = {"path": new.path}
        if base is not None:
            entry |= {"base": base.model, "base_path": base.checkpoint}
        if new.defaults:
            entry["defaults"] = json.loads(new.defaults)
        raw["added"][new.name] = entry
        raw["removed"] = [name for name in raw["removed"] if name != new.name]
        self._write(raw)

    def remove(self, name: str, default: str) -> None:
        """Record a removal. Raises OSError if writing fails.

        ``default`` is the id that stands for requests without a model from now on; "" means no change.
        """
        raw = self._for_change()
        raw["added"].pop(name, None)
        raw["removed"] = [*(one for one in raw["removed"] if one != name), name]
        raw["default"] = default or raw["default"]
        self._write(raw)

    def _raw(self) -> dict[str, Any]:
        """Return the complete document. Raises OSError, or ValueError if it is not a changes file."""
        try:
            text = read_plain(self.path)
        except FileNotFoundError:
            return {"version": VERSION, "added": {}, "removed": [], "default": ""}
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"it is no file of version {VERSION} of this kind")
        raw = {"added": {}, "removed": [], "default": "", **found}
        if not isinstance(raw["added"], dict) or not isinstance(raw["removed"], list):
            raise ValueError("added is no object, or removed is no list")
        return raw

    def _for_change(self) -> dict[str, Any]:
        """Return the document to change. An unreadable one is first set aside under a free name."""
        try:
            return self._raw()
        except ValueError:
            number = 1
            while (aside := self.path.with_name(f"{self.path.name}.unreadable-{number}")).exists():
                number += 1
            os.replace(self.path, aside)
            return self._raw()

    def _write(self, raw: Mapping[str, Any]) -> None:
        write_whole(self.path, (json.dumps(raw, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def _entry(name: str, entry: object) -> NewApplication:
    """Return an entry as the request that created it. Raises ValueError."""
    try:
        check_name(name)
    except RequestRefused as refused:
        raise ValueError(refused.message) from None
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    path = entry.get("path")
    base = entry.get("base", "")
    defaults = entry.get("defaults", {})
    base_path = entry.get("base_path", "")  # an earlier release has not written it
    if not isinstance(path, str) or not os.path.isabs(path):
        raise ValueError(f"path is {path!r}; give a folder from the root on")
    if not isinstance(base, str) or not isinstance(base_path, str):
        raise ValueError(f"base is {base!r} and base_path {base_path!r}; give a model id and a folder")
    if not isinstance(defaults, dict):
        raise ValueError("defaults is no object")
    text = json.dumps(defaults, sort_keys=True) if defaults else ""
    return NewApplication(name, path, base, defaults=text, on_demand=True, base_path=base_path)

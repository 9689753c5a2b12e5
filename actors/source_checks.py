"""Store and origin as the head and workers find them before anything starts, and models that only the origin has.

Such a model is named by its name in the origin. The head takes what it needs of it, everything but the tensors, into a
mirror (``zoo/mirror.py``) in the user's cache. Loads no torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from ..zoo.errors import OriginError, StorageError, ZooError
from ..zoo.layout import Layout, is_name
from ..zoo.mirror import mirrored
from ..zoo.origin import check_origin, is_address, open_origin
from ..zoo.store import Store
from .settings.errors import SettingsError
from .settings.settings import Settings
from .settings.sources import SourceSettings

log = logging.getLogger("blockwright.cluster")


def check_store(sources: SourceSettings) -> None:
    """Make the store if there is none. Raises SettingsError if it cannot be one."""
    try:
        if sources.store:
            Store.open(sources.store, sources.store_size)
    except ZooError as error:
        raise SettingsError(str(error)) from None


def check_sources(sources: SourceSettings, *, again: bool = False) -> None:
    """Check the store and the origin as they are seen from here. Raises SettingsError.

    ``again``: there was a head before, whose workers may have all that they need, so that an origin that is away is only
    said.
    """
    check_store(sources)
    try:
        if sources.origin:
            check_origin(sources.origin)
    except ZooError as error:
        if not again:
            raise SettingsError(str(error)) from None
        log.warning("%s", error)


def mirrors() -> Path:
    """Return the folder of this user's mirrors, which may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "blockwright" / "mirrors"


def with_models_of_origin(settings: Settings, before: Mapping[str, str] | None = None) -> Settings:
    """Return the settings with a folder of this machine for each model that only the origin has.

    ``before``: folders by model id that an earlier head has used; while one is there, the origin is not asked. Raises
    SettingsError.
    """
    folders, origin = dict[str, str](), settings.sources.origin
    for name, path in settings.models.applications.items():
        if origin and is_name(path) and not Path(path).exists():
            known = (before or {}).get(name, "")
            folders[name] = known if known and Path(known).is_dir() else _of_origin(origin, path)
    return settings.changed(applications={**settings.models.applications, **folders}) if folders else settings


def _of_origin(text: str, name: str) -> str:
    """Return the folder of an application of the origin: its own, or a mirror's."""
    try:
        check_origin(text)
        origin = open_origin(text)
    except ZooError as error:
        raise SettingsError(str(error)) from None
    try:
        with closing(origin):
            if is_address(text):
                return str(mirrored(origin, name, mirrors()))
            folder = Layout(Path(text).expanduser().absolute()).chain(name)
            if not folder.is_dir():
                raise OriginError(f"it has no folder chains/{name}")
            return str(folder)
    except StorageError as error:
        raise SettingsError(f"{error}; name another folder for it in XDG_CACHE_HOME") from None
    except ZooError as error:
        raise SettingsError(
            f"{name!r} is no folder here, and the origin {origin.where} does not give an application of that name ({error});"
            " name one that 'blockwright zoo list' shows there"
        ) from None

"""Checks of the settings with which workers load what no folder of theirs has: the store and the origin. Loads no torch."""

from __future__ import annotations

from ..zoo.errors import ZooError
from ..zoo.origin import check_origin
from ..zoo.store import Store
from .settings.errors import SettingsError
from .settings.sources import SourceSettings


def check_store(sources: SourceSettings) -> None:
    """Make the store if there is none. Raises SettingsError if it cannot be one."""
    try:
        if sources.store:
            Store.open(sources.store, sources.store_size)
    except ZooError as error:
        raise SettingsError(str(error)) from None


def check_sources(sources: SourceSettings) -> None:
    """Check the store and the origin as they are seen from here. Raises SettingsError."""
    check_store(sources)
    try:
        if sources.origin:
            check_origin(sources.origin)
    except ZooError as error:
        raise SettingsError(str(error)) from None

"""Folders that the settings name for what is written while a cluster serves: made, and tried, before anything starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .config import Settings, SettingsError

NAMES = ("request_log", "tagger_folder", "event_log")  # settings


def check_folders(settings: Settings) -> None:
    """Raises SettingsError."""
    for name in NAMES:
        if folder := getattr(settings, name):
            try:
                path = Path(folder).expanduser()
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
            except (OSError, RuntimeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise SettingsError(f"{name}: {folder} cannot be used ({reason}); name a folder to write to") from None

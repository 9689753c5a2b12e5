"""Output folders that the settings name: each is created, and written to as a trial, before anything starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .config import Settings, SettingsError

NAMES = ("request_log", "tagger_folder", "event_log")  # settings


def check_folders(settings: Settings) -> None:
    """Create each folder and try to write to it. Raises SettingsError."""
    for name in NAMES:
        if folder := getattr(settings, name):
            try:
                path = Path(folder).expanduser()
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
            except (OSError, RuntimeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise SettingsError(f"{name}: {folder} cannot be used ({reason}); name a folder to write to") from None

"""A file in which a command stores figures or a picture: checked before the measurement, written after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import CommandError


class FiguresFile:
    """The file. ``flag``: the flag that names it. The constructor and ``store`` raise CommandError if writing fails."""

    def __init__(self, flag: str, name: str) -> None:
        self._flag, self._path = flag, Path(name)
        if not self._path.absolute().parent.is_dir():
            raise CommandError(f"{flag} {name} lies in no folder; make {self._path.absolute().parent}", 2)
        if self._path.is_dir():
            raise CommandError(f"{flag} {name} is a folder; name a file in it", 2)

    def store(self, found: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.write(json.dumps(found, indent=1) + "\n")

    def write(self, text: str) -> None:
        try:
            self._path.write_text(text)
        except OSError as error:
            raise CommandError(f"{self._path} cannot be written ({error.strerror}); check {self._flag}") from None

"""The settings of joining: where workers on other machines reach the head, and with which keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from .errors import SettingsError
from .part import SettingsPart

_ID = re.compile(r"[0-9a-f]{12}")  # as blockwright keys join prints it


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings(SettingsPart):
    """The head's address for other machines, its keys, and the texts with which workers join."""

    listen: Annotated[
        str, "tcp://HOST:PORT at which workers on other machines reach the head (port 0: any free one); empty: none do"
    ] = ""
    head_keys: Annotated[str, "folder with the head's keys (blockwright keys new), needed with listen"] = ""
    join_file: Annotated[str, "file to write a join text for workers to, valid for 30 days, once the head listens"] = ""
    revoked_joins: Annotated[str, "ids of join texts that are refused, separated by commas"] = ""

    @property
    def revoked(self) -> list[str]:
        """The ids of revoked join texts."""
        return [part.strip() for part in self.revoked_joins.split(",") if part.strip()]

    def check_together(self) -> None:
        for id in self.revoked or [self.revoked_joins]:
            if id and not _ID.fullmatch(id):
                raise SettingsError(
                    f"revoked_joins names {id!r}, which is no id of a join text; give the 12 hexadecimal digits that "
                    "blockwright keys join prints, several with commas between"
                )
        if self.listen and not self.head_keys:
            raise SettingsError(
                f"listen is {self.listen}, but head_keys is empty; make keys with 'blockwright keys new FOLDER' and give "
                "--keys FOLDER"
            )
        if not self.listen:
            for name in ("head_keys", "join_file", "revoked_joins"):
                if getattr(self, name):
                    raise SettingsError(f"{name} is set, but the head listens nowhere; give --listen tcp://HOST:PORT, too")

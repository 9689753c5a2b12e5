"""The settings of forecasts of answer lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import SettingsError
from .part import BYTES, LEAST_LOG, SettingsPart

TRAINED = "trained:"  # prefix of the setting tagger before a file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggerSettings(SettingsPart):
    """The tagger, and the log of requests that one is trained on."""

    tagger: Annotated[
        str,
        "source of the estimates of answer lengths: off, history (of past requests) or trained:FILE (which keeps learning)",
    ] = "off"
    tagger_folder: Annotated[str, "folder where the tagger keeps what it has learned; empty: nowhere"] = ""
    request_log: Annotated[
        str, "folder for logs of requests (hashed features and lengths, no tokens) to train a tagger on; empty: off"
    ] = ""
    request_log_size: Annotated[
        int, "bytes (or 64MiB) per gateway's request log; older requests are deleted", BYTES, LEAST_LOG
    ] = 64 << 20

    @property
    def is_on(self) -> bool:
        """True if answer lengths are forecast."""
        return self.tagger != "off"

    def check_together(self) -> None:
        if self.tagger not in ("off", "history") and not self.tagger.partition(TRAINED)[2]:
            raise SettingsError(f"tagger is {self.tagger!r}; choose one of off, history, {TRAINED}FILE")

"""The settings of logs and traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import SettingsError
from .part import BYTES, LEAST_LOG, AllowedTexts, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(SettingsPart):
    """The log, the event logs, and the spans of requests."""

    log_format: Annotated[
        str, "text, or json: one object per line, on standard output and error", AllowedTexts("text", "json")
    ] = "text"
    log_level: Annotated[
        str,
        "least important level that is logged: debug, info, warning or error",
        AllowedTexts("debug", "info", "warning", "error"),
    ] = "warning"
    event_log: Annotated[
        str, "folder for the event logs of workers (with prompts and answers as token ids) and controller; empty: off"
    ] = ""
    event_log_size: Annotated[int, "bytes (or 64MiB) per event log; older entries are deleted", BYTES, LEAST_LOG] = 64 << 20
    otlp_traces_endpoint: Annotated[
        str, "URL to send trace spans of requests to (http://HOST:4318/v1/traces; needs the extra otlp); empty: off"
    ] = ""

    def check_together(self) -> None:
        if (traces := self.otlp_traces_endpoint) and not traces.startswith(("http://", "https://")):
            raise SettingsError(f"otlp_traces_endpoint is {traces!r}; give a URL like http://localhost:4318/v1/traces")

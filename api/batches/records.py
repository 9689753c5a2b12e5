"""The records of files and batches in the store's own terms; ``views.py`` converts them to the API's. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .status import BatchStatus

INPUT, OUTPUT = "batch", "batch_output"  # purposes of files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file. ``lines``: number of non-empty lines of a file of requests. Times are seconds since the epoch."""

    id: str
    tenant: str
    purpose: str
    filename: str
    nbytes: int
    created_at: int
    expires_at: int | None = None
    lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch.

    ``key``: names the API key that created it and owns the requests of its lines. ``window``: as requested. ``at``: status
    (all but the first) -> time when it began. ``failed`` counts the lines of the error file, ``completed`` the lines of the
    output file. ``figures``: the runner's latest report.
    """

    id: str
    tenant: str
    key: str
    endpoint: str
    input_file: str
    window: str
    created_at: int
    expires_at: int
    status: BatchStatus = BatchStatus.VALIDATING
    ending: BatchStatus | None = None  # while its files are written: the next status
    at: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    output_file: str = ""
    error_file: str = ""
    keep_outputs: int | None = None  # seconds after which its files are deleted; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """The result of a line (from 0), as in the output file, or in the error file if it failed."""

    batch: str
    line: int
    failed: bool
    text: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    model: str = ""

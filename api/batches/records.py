"""What the store keeps of files and batches, in its own terms; ``views.py`` says it in those of the API. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .status import BatchStatus

INPUT, OUTPUT = "batch", "batch_output"  # purposes of files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """``lines``: of a file of requests, those that are not empty. Times are seconds of the epoch."""

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
    """``key``: names the API key that made it, whose requests its lines are. ``window``: as it was asked for; ``at``: when
    each status but the first began, by its name. ``failed`` counts the lines of the error file, ``completed`` those of the
    output file. ``figures``: what the runner last told of it."""

    id: str
    tenant: str
    key: str
    endpoint: str
    input_file: str
    window: str
    created_at: int
    expires_at: int
    status: BatchStatus = BatchStatus.VALIDATING
    ending: BatchStatus | None = None  # while its files are written: the status that follows
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
    keep_outputs: int | None = None  # seconds after which its files go; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """The outcome of a line (from 0), as it will stand in the output file, or in the error file where it failed."""

    batch: str
    line: int
    failed: bool
    text: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    model: str = ""

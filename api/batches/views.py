"""Files and batches as OpenAI's API shows them: types of the answers, and conversion from the store's records. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict

from .records import BatchRecord, FileRecord
from .status import BatchStatus


class FileAnswer(TypedDict):
    """A file. ``status``: a file appears only when it is complete."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: NotRequired[int]
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FilesAnswer(TypedDict):
    """A page of files. ``has_more``: ask again with ``after`` = ``last_id``."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedAnswer(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchErrorAnswer(TypedDict):
    """An error. ``line``: of the input file, counted from 1."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrorsAnswer(TypedDict):
    """The first 100 invalid lines, or the reason the whole batch failed. The error file has all of them."""

    object: Literal["list"]
    data: list[BatchErrorAnswer]


class RequestCounts(TypedDict):
    """Counts of lines.

    ``total`` is 0 until the lines are checked. ``completed`` lines are in the output file, ``failed`` ones in the error
    file.
    """

    total: int
    completed: int
    failed: int


class CachedTokens(TypedDict):
    cached_tokens: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class BatchUsage(TypedDict):
    """The tokens of the lines answered so far."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchAnswer(TypedDict):
    """A batch. Times are Unix times.

    ``blockwright`` shows the progress by model: ``remaining_seconds``, ``density``, ``sharing`` of prompts, KV of the two
    ``sides``, ``waits`` (the reason nothing could be answered at the last attempt, if any). ``blockwright.waits``
    gives the reason the whole batch waits, if it does: its turn, a model, memory, or a full disk.
    """

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrorsAnswer | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    blockwright: dict[str, Any]


class BatchesAnswer(TypedDict):
    """A page of batches. ``has_more``: ask again with ``after`` = ``last_id``."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


def file_view(file: FileRecord) -> FileAnswer:
    view: FileAnswer = {
        "id": file.id,
        "object": "file",
        "bytes": file.nbytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
    if file.expires_at is not None:
        view["expires_at"] = file.expires_at
    return view


def files_view(files: list[FileRecord], more: bool) -> FilesAnswer:
    data = [file_view(file) for file in files]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def batch_view(batch: BatchRecord, waits: str = "") -> BatchAnswer:
    """Return the batch as clients see it. ``waits``: the reason it waits, or an empty text."""
    at = {status: batch.at.get(status) for status in BatchStatus}
    errors: BatchErrorsAnswer = {"object": "list", "data": [_error(one) for one in batch.errors]}
    usage: BatchUsage = {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.prompt_tokens + batch.output_tokens,
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": errors if batch.errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status.value,
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": batch.created_at,
        "in_progress_at": at[BatchStatus.IN_PROGRESS],
        "expires_at": batch.expires_at,
        "finalizing_at": at[BatchStatus.FINALIZING],
        "completed_at": at[BatchStatus.COMPLETED],
        "failed_at": at[BatchStatus.FAILED],
        "expired_at": at[BatchStatus.EXPIRED],
        "cancelling_at": at[BatchStatus.CANCELLING],
        "cancelled_at": at[BatchStatus.CANCELLED],
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": usage,
        "metadata": batch.metadata,
        "blockwright": _figures(batch.figures, waits),
    }


def _figures(figures: dict[str, Any], waits: str) -> dict[str, Any]:
    """Return the figures under our own key. The stored ones may be older than the reason the batch waits."""
    if not waits:
        return figures
    models = {name: {**one, "waits": one["waits"] or waits} for name, one in figures.get("models", {}).items()}
    return figures | ({"models": models} if models else {}) | {"waits": waits}


def batches_view(
    batches: list[BatchRecord], more: bool, waits: Callable[[BatchRecord], str] = lambda batch: ""
) -> BatchesAnswer:
    """Return a page of batches. ``waits``: returns the reason a batch waits."""
    data = [batch_view(batch, waits(batch)) for batch in batches]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def _error(said: dict[str, Any]) -> BatchErrorAnswer:
    return {"code": said["code"], "message": said["message"], "param": said["param"], "line": said["line"]}

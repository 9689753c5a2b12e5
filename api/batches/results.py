"""Results of lines, and the output and error files made of them. Runs on the store's thread."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator

from .folder import PartFile
from .input_file import InputFile
from .lines import LineAnswer, result_line
from .records import OUTPUT, BatchRecord, FileRecord, ResultRecord
from .status import BatchStatus
from .store import BatchStore

_NOT_RUN = {
    BatchStatus.EXPIRED: ("batch_expired", "this request could not be answered before the completion window was over"),
    BatchStatus.CANCELLED: ("batch_cancelled", "this request was not answered before the batch was cancelled"),
}


def make_result(batch: str, line: int, custom_id: str | None, found: LineAnswer, model: str = "") -> ResultRecord:
    """Return the result of a line that was answered or refused."""
    return ResultRecord(
        batch=batch,
        line=line,
        failed=found.status != 200,
        text=result_line(result_id(batch, line), custom_id, found),
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        cached_tokens=found.cached,
        model=model if found.status == 200 else "",
    )


def result_id(batch: str, line: int) -> str:
    """Return the id of a result, which is the same on each call."""
    return f"batch_req_{_digest(f'{batch} {line}')}"


def write_files(store: BatchStore, batch: BatchRecord, now: float) -> None:
    """Write the files of a batch whose computation has ended, and set its last status.

    Repeated after a crash, it writes the same files. Raise OSError.
    """
    ending = BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else batch.ending or BatchStatus.COMPLETED
    with contextlib.ExitStack() as stack:
        output, _ = _write(stack, store, batch, "output", store.texts(batch.id, failed=False), now)
        failed, count = _write(stack, store, batch, "error", _failures(store, batch, ending), now)
        ids = {"output_file": output.id if output else "", "error_file": failed.id if failed else ""}
        files = [file for file in (output, failed) if file is not None]
        store.finish(batch.id, ending, files, now, failed=count, total=max(batch.total, batch.completed + count), **ids)


def _write(
    stack: contextlib.ExitStack,
    store: BatchStore,
    batch: BatchRecord,
    kind: str,
    texts: Iterable[tuple[int, bytes]],
    now: float,
) -> tuple[FileRecord | None, int]:
    """Return the file, locked until the stack ends, and its number of lines; None for an empty one."""
    id = f"file-{_digest(f'{batch.id} {kind}')}"
    part = PartFile(store.path(id))
    stack.callback(part.close)
    count = 0
    for _, text in texts:
        part.file.write(text)
        count += 1
    if not count:
        return None, 0
    expires = None if batch.keep_outputs is None else batch.created_at + batch.keep_outputs
    record = FileRecord(
        id=id,
        tenant=batch.tenant,
        purpose=OUTPUT,
        filename=f"{batch.id}_{kind}.jsonl",
        nbytes=part.keep(),
        created_at=int(now),
        expires_at=expires,
        lines=count,
    )
    return record, count


def _failures(store: BatchStore, batch: BatchRecord, ending: BatchStatus) -> Iterator[tuple[int, bytes]]:
    """Yield the failed lines, and then the ones that were not run."""
    yield from store.texts(batch.id, failed=True)
    if ending not in _NOT_RUN:
        return
    code, message = _NOT_RUN[ending]
    answered = store.answered(batch.id)
    try:
        file = InputFile(store.path(batch.input_file))
    except FileNotFoundError:
        return
    try:
        for line, raw in enumerate(file):
            if line not in answered:
                error = {"code": code, "message": message}
                yield line, result_line(result_id(batch.id, line), _custom_id(raw), None, error)
    finally:
        file.close()


def _custom_id(raw: bytes) -> str | None:
    """Return the custom id of a line, which may be anything; None without one."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    named = found.get("custom_id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]

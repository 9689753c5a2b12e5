"""An uploaded file of requests on its way to the disk: written as it arrives, its lines checked, never in memory as a whole.

A file is refused as invalid JSONL, with its first bad line, if more than half of its lines are not JSON objects. With fewer
bad lines, each gets its own error when a batch reads it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ..errors import ApiError, bad_request
from ..openai.json_size import check_size
from .folder import PartFile

EMPTY = 4  # lines, including empty ones, that a file may have for each allowed request


class UploadedFile:
    """A file during its upload (see the module). Raises ApiError for refusals, OSError for errors of the disk.

    ``most_lines``, ``most_bytes``: limits of the file. ``longest``: most bytes of a line.
    """

    def __init__(self, path: Path, *, most_lines: int, most_bytes: int, longest: int) -> None:
        self.part = PartFile(path)
        self.lines = 0  # non-empty lines
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._longest = longest
        self._begun = bytearray()  # start of the incomplete line
        self._number = self._bytes = self._objects = 0
        self._first_bad = ""

    def write(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            raise too_large(self._most_bytes)
        self.part.file.write(data)
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._look(bytes(self._begun) + line)
            self._begun.clear()
        self._begun += rest
        self._check_length(len(self._begun), self._number + 1)

    def keep(self) -> int:
        """Complete the file on the disk and return its size. ``part`` stays locked until it is closed."""
        self._look(bytes(self._begun))
        if not self.lines:
            raise bad_request("the file has no lines; send at least one request", "file", "empty_file")
        if 2 * self._objects < self.lines:
            message = f"the file is no JSONL: {self._first_bad}; {self.lines - self._objects} of {self.lines} lines are no"
            raise bad_request(f"{message} JSON objects: send one object on each line", "file", "invalid_jsonl")
        return self.part.keep()

    def _look(self, line: bytes) -> None:
        self._number += 1
        self._check_length(len(line), self._number)
        if not line.strip():
            if self._number > EMPTY * self._most_lines:
                message = f"the file has more than {EMPTY * self._most_lines} lines, most of them empty; leave those out"
                raise bad_request(message, "file", "invalid_jsonl")
            return
        self.lines += 1
        if self.lines > self._most_lines:
            message = f"the file has more than {self._most_lines} requests (batch_requests)"
            raise bad_request(f"{message}; split it", "file", "too_many_requests")
        reason = _why_no_object(line)
        self._objects += not reason
        if reason and not self._first_bad:
            self._first_bad = f"line {self._number} {reason}"

    def _check_length(self, length: int, number: int) -> None:
        if length > self._longest:
            message = f"line {number} is longer than {self._longest} bytes (max_body), what one request may have"
            raise bad_request(f"{message}; is it JSONL, with one request on each line?", "file", "invalid_jsonl")


async def opened(path: Path, **limits: Any) -> UploadedFile:
    """Return an upload, opened on a thread.

    A cancellation (the client disconnected) leaves nothing behind: the thread goes on, and the file is closed once it is
    open.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(UploadedFile, path, **limits))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[UploadedFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().part.close()


def too_large(limit: int) -> ApiError:
    message = f"the file is larger than the limit of {limit} bytes (batch_bytes); split it"
    error = ApiError(413, message, param="file")
    error.headers["Connection"] = "close"  # the rest of the body is not read
    return error


def _why_no_object(line: bytes) -> str:
    """Return the reason a line is not a JSON object, or an empty text."""
    try:
        check_size(line)
        found = json.loads(line)
    except ApiError as error:
        return error.message.replace("the body", "", 1).strip()
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return f"is not valid JSON ({error})"
    return "" if isinstance(found, dict) else "is not a JSON object"

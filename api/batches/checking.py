"""The check of a batch's whole input file before any of its lines runs.

The result has the lines that are not requests, the lines that their endpoint refuses, and the rest in the form that the
batch's order works on. Nothing is stored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from ...actors.batches.port import LineJob
from ...policies.offline.feed import OfflineRequest
from ...policies.offline.prefix_tree import packed
from ..errors import ApiError
from ..http.auth import ApiCaller
from ..http.context import Front
from . import lines
from .input_file import InputFile
from .lines import BatchLine, LineRefused, result_line
from .records import BatchRecord, ResultRecord
from .results import make_result, result_id

TOGETHER = 500  # results per transaction
MOST_ERRORS = 100  # errors in a batch's own list; its error file has all of them


@dataclass(slots=True)
class CheckedFile:
    """A checked file.

    ``jobs``: lines that can be answered or already were, by application. ``refused``: the results of the others.
    """

    jobs: dict[str, list[LineJob]] = field(default_factory=dict)
    refused: list[ResultRecord] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0  # lines that are requests, refused by their endpoint or not

    @property
    def none_is_a_request(self) -> bool:
        return not self.requests


async def check(front: Front, batch: BatchRecord, file: InputFile, answered: Container[int]) -> CheckedFile:
    """Check the lines of a file, yielding to other tasks after each. ``answered``: lines that have a result.

    Raise OSError, and RetryLater while no model is loaded that could be asked.
    """
    found, first_with = CheckedFile(), dict[str, int]()
    caller = ApiCaller(batch.tenant, batch.key)
    for line in range(len(file)):
        await asyncio.sleep(0)
        try:
            parsed = await lines.parse_here(file[line], batch.endpoint)
            _check_unique(parsed, first_with, file, line)
        except LineRefused as error:
            if line not in answered:
                _refuse(found, batch.id, file, line, error)
            continue
        found.requests += 1
        try:
            prepared = await lines.prepare(front, caller, parsed)
        except ApiError as error:
            if line not in answered:
                found.refused.append(make_result(batch.id, line, parsed.custom_id, lines.refused(error)))
            continue
        request = OfflineRequest(prompt=packed(prepared.prompt), limit=prepared.limit, choices=prepared.choices)
        found.jobs.setdefault(prepared.application, []).append(LineJob(line, request))
    return found


def _check_unique(parsed: BatchLine, first_with: dict[str, int], file: InputFile, line: int) -> None:
    first = first_with.setdefault(parsed.custom_id, line)
    if first != line:
        message = f"custom_id {parsed.custom_id!r:.80} is on line {file.number(first)} already; give each its own"
        raise LineRefused("duplicate_custom_id", message, "custom_id", parsed.custom_id)


def _refuse(found: CheckedFile, batch: str, file: InputFile, line: int, error: LineRefused) -> None:
    said = {"code": error.code, "message": error.message, "param": error.param, "line": file.number(line)}
    if len(found.errors) < MOST_ERRORS:
        found.errors.append(said)
    text = result_line(result_id(batch, line), error.custom_id, None, said)
    found.refused.append(ResultRecord(batch=batch, line=line, failed=True, text=text))

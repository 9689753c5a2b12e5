"""``/v1/batches``: creating a batch from a file of requests, listing, reading, cancelling. ``actors/batches/`` runs them.

A key sees only the batches of its tenant; others do not exist for it.
"""

from __future__ import annotations

import re
import secrets
import time
from functools import partial
from typing import Any

from aiohttp import web

from ..checks import shown
from ..errors import ApiError, bad_request
from ..http.context import CALLER, FRONT, IGNORED
from ..openai.bodies import read_fields
from ..openai.field_types import MOST_PAIRS, Field, Integer, Metadata, OneOf, Record, Schema, Text
from ..openai.request_body import read_body
from .files import LONGEST_LIFE, SHORTEST_LIFE, query, store_of, storing
from .lines import ENDPOINTS
from .records import INPUT, BatchRecord
from .status import OPEN, BatchStatus
from .views import batch_view, batches_view

LONGEST_WINDOW = 30 * 24 * 3600  # seconds
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


class CompletionWindow:
    """The field type of a time: a number of seconds, minutes, hours or days, in one word."""

    def read(self, value: Any, name: str) -> str:
        if not isinstance(value, str) or not 0 < seconds_of(value) <= LONGEST_WINDOW:
            raise bad_request(f"{name} is {shown(value)}; give 24h, or another time up to 30d", name)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 2, "maxLength": 8}


_EXPIRES = (
    Field("anchor", OneOf(("created_at",)), "When the time begins to count.", required=True),
    Field("seconds", Integer(SHORTEST_LIFE, LONGEST_LIFE), "Seconds after which they are deleted.", required=True),
)
CREATE_FIELDS = (
    Field("input_file_id", Text(100), "A file with the purpose batch.", required=True),
    Field("endpoint", OneOf(tuple(ENDPOINTS)), "The endpoint of all lines.", required=True),
    Field(
        "completion_window",
        CompletionWindow(),
        "24h, or another time up to 30d, after which the batch expires.",
        required=True,
    ),
    Field("metadata", Metadata(), f"Up to {MOST_PAIRS} pairs of texts, for your own use."),
    Field("output_expires_after", Record(_EXPIRES), "When to delete its output and error files."),
)
LIST_FIELDS = (
    Field("limit", Integer(1, 100), "Most items to return.", default=20),
    Field("after", Text(100), "Return those older than this one."),
)


def seconds_of(window: str) -> int:
    """Return the seconds of a window, or 0 for an invalid one."""
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", window)
    return int(found[1]) * _UNITS[found[2]] if found else 0


async def create(request: web.Request) -> web.Response:
    thread, caller = store_of(request), request[CALLER]
    check = partial(read_fields, fields=CREATE_FIELDS, unknown=request.app[FRONT].settings.requests.unknown_fields)
    values, request[IGNORED] = await read_body(request, check)
    kept = values.get("output_expires_after")
    if kept is not None and len(kept) != len(_EXPIRES):
        raise bad_request("output_expires_after needs both anchor and seconds; give them", "output_expires_after")
    file = await thread.call(thread.store.file, caller.tenant, values["input_file_id"])
    missing = bad_request(
        f"there is no file {shown(values['input_file_id'])}; send one to /v1/files", "input_file_id", "file_not_found"
    )
    if file is None:
        raise missing
    if file.purpose != INPUT:
        message = f"the purpose of file {file.id} is {file.purpose}; give a file of purpose {INPUT}"
        raise bad_request(message, "input_file_id")
    now = int(time.time())
    batch = BatchRecord(
        id=f"batch_{secrets.token_hex(12)}",
        tenant=caller.tenant,
        key=caller.key,
        endpoint=values["endpoint"],
        input_file=file.id,
        window=values["completion_window"],
        created_at=now,
        expires_at=now + seconds_of(values["completion_window"]),
        metadata=values.get("metadata"),
        keep_outputs=kept["seconds"] if kept is not None else None,
    )
    with storing():
        if not await thread.call(thread.store.add_batch, batch):
            raise missing
    return web.json_response(batch_view(batch))


async def list_batches(request: web.Request) -> web.Response:
    thread, asked = store_of(request), query(request, LIST_FIELDS)
    after = asked.get("after", "")
    try:
        batches, more = await thread.call(
            thread.store.list_batches, request[CALLER].tenant, after=after, limit=asked.get("limit", 20)
        )
    except KeyError:
        raise bad_request(f"after is {shown(after)}, which is no batch here; give the last_id of a page", "after") from None
    return web.json_response(batches_view(batches, more, partial(_waits, request)))


async def _found(request: web.Request) -> BatchRecord:
    """Return the batch that the path names, or raise a 404."""
    thread, id = store_of(request), request.match_info["id"]
    batch = await thread.call(thread.store.batch, id, request[CALLER].tenant)
    if batch is None:
        raise ApiError(404, f"there is no batch {shown(id)}", param="id")
    return batch


def _waits(request: web.Request, batch: BatchRecord) -> str:
    """Return the reason a batch waits; empty if it does not wait or another process runs it."""
    batch_service = request.app[FRONT].batch_service
    return batch_service.reason(batch.id) if batch_service is not None and batch.status in OPEN else ""


async def one_batch(request: web.Request) -> web.Response:
    batch = await _found(request)
    return web.json_response(batch_view(batch, _waits(request, batch)))


async def cancel(request: web.Request) -> web.Response:
    """Cancel a batch; existing answers are kept."""
    thread, batch = store_of(request), await _found(request)
    with storing():
        await thread.call(thread.store.cancel, batch.id, time.time())
    batch = await _found(request)
    if batch.status not in (*OPEN, BatchStatus.CANCELLED):
        message = f"batch {batch.id} is {batch.status.value}; there is nothing left to cancel"
        raise ApiError(409, message, param="id", code="conflict")
    return web.json_response(batch_view(batch, _waits(request, batch)))

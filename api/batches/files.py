"""``/v1/files``: uploading, listing, reading and deleting files of requests, and the files that batches make.

A key sees only the files of its tenant; others do not exist for it. Files are never held in memory: they are streamed to and
from the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from ..checks import shown
from ..errors import ApiError, bad_request
from ..http.content_encoding import decoded_reader
from ..http.context import CALLER, FRONT
from ..http.expect import begin_body
from ..openai.field_types import Field, Integer, OneOf, Schema, Text
from ..openai.request_body import SLOWEST
from .records import INPUT, OUTPUT, FileRecord
from .store import FileInUse
from .store_thread import StoreThread
from .upload import UploadedFile, opened, too_large
from .views import DeletedAnswer, file_view, files_view

BATCHES: web.AppKey[StoreThread | None] = web.AppKey("batches")
PIECE = 1 << 20  # bytes per write
LONGEST_FIELD, MOST_FIELDS = 1024, 16  # most bytes of a form's field, most fields
LONGEST_NAME = 255  # most characters of a file name
SHORTEST_LIFE, LONGEST_LIFE = 3600, 30 * 24 * 3600  # seconds
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class Upload:
    """The field type of a file in a form."""

    def read(self, value: Any, name: str) -> Any:
        return value

    def schema(self) -> Schema:
        return {"type": "string", "contentMediaType": "application/jsonl"}


UPLOAD_FIELDS = (
    Field("file", Upload(), "JSONL: one request per line, {custom_id, method, url, body}.", required=True),
    Field("purpose", OneOf((INPUT,)), "What the file is for.", required=True),
    Field(_ANCHOR, OneOf(("created_at",)), "When the time begins to count."),
    Field(_SECONDS, Integer(SHORTEST_LIFE, LONGEST_LIFE), "Seconds after which it is deleted; default: never."),
)
LIST_FIELDS = (
    Field("purpose", OneOf((INPUT, OUTPUT)), "Only files with this purpose; batch_output: the output of batches."),
    Field("limit", Integer(1, 10_000), "Most items to return.", default=10_000),
    Field("order", OneOf(("asc", "desc")), "By time.", default="desc"),
    Field("after", Text(100), "Return those after this one."),
)


def store_of(request: web.Request) -> StoreThread:
    """Return the store, or raise a 404 if no folder is configured."""
    store = request.app[BATCHES]
    if store is None:
        message = "this server keeps no files and batches: batch_dir is empty; restart it with --set batch_dir=FOLDER"
        raise ApiError(404, message, code="not_found")
    return store


def query(request: web.Request, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the given query parameters, checked; raise a 400."""
    given = {}
    for field in fields:
        value: Any = request.query.get(field.name)
        if value is not None:
            given[field.name] = field.kind.read(_number(value) if isinstance(field.kind, Integer) else value, field.name)
    return given


def storing() -> contextlib.AbstractContextManager[None]:
    """Return a context that turns disk errors into an API error."""
    return _Storing()


class _Storing(contextlib.AbstractContextManager[None]):
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            message = f"the disk of batch_dir does not take it ({error}); free some space and try again"
            raise ApiError(507, message, code="insufficient_storage") from error


async def upload(request: web.Request) -> web.Response:
    """Store an uploaded file. The form's fields come in any order."""
    thread, settings = store_of(request), request.app[FRONT].settings
    if request.content_type != "multipart/form-data":
        found = shown(request.content_type)
        raise bad_request(f"the body is {found}; send multipart/form-data with file and purpose", "file")
    if (request.content_length or 0) > settings.offline.batch_bytes + PIECE:
        raise too_large(settings.offline.batch_bytes)
    id = f"file-{secrets.token_hex(12)}"
    limits = {
        "most_lines": settings.offline.batch_requests,
        "most_bytes": settings.offline.batch_bytes,
        "longest": settings.requests.largest_body,
    }
    with storing():
        file = await opened(thread.store.path(id), **limits)
        try:
            fields = await _read_form(request, file)
            values = _checked(fields)
        except BaseException:
            file.part.close()
            raise
        # The upload is complete: if the client disconnects now, the file must still be stored and registered.
        record = await asyncio.shield(_store(thread, file, id, request[CALLER].tenant, fields["file"], values))
    return web.json_response(file_view(record))


async def _store(
    thread: StoreThread, file: UploadedFile, id: str, tenant: str, filename: str, values: dict[str, Any]
) -> FileRecord:
    try:
        record = FileRecord(
            id=id,
            tenant=tenant,
            purpose=values["purpose"],
            filename=filename,
            nbytes=await asyncio.to_thread(file.keep),
            created_at=(now := int(time.time())),
            expires_at=now + values[_SECONDS] if _SECONDS in values else None,
            lines=file.lines,
        )
        await thread.call(thread.store.add_file, record)
    finally:
        file.part.close()
    return record


async def _read_form(request: web.Request, file: UploadedFile) -> dict[str, str]:
    """Return the texts of the form's fields; raise a 400, 408 or 413.

    The field ``file`` yields its name; its bytes are written to ``file``.
    """
    seconds = request.app[FRONT].settings.network.read_timeout
    found = dict[str, str]()
    count = 0
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + seconds) as limit:
            max_size = request.app[FRONT].settings.offline.batch_bytes + PIECE
            await begin_body(request, max_size)
            form = MultipartReader(request.headers, decoded_reader(request, max_size))
            while (part := await form.next()) is not None:
                if isinstance(part, MultipartReader) or part.name is None or part.name in found:
                    raise bad_request("the form has a part without a name, or one twice; send file and purpose", "file")
                if len(found) == MOST_FIELDS:
                    raise bad_request(f"the form has more than {MOST_FIELDS} fields; send file and purpose", "file")
                if part.name != "file":
                    found[part.name] = await _text(part)
                    continue
                found["file"] = (part.filename or "file.jsonl").replace("\\", "/").rpartition("/")[2][:LONGEST_NAME]
                while piece := await _piece(part):
                    await asyncio.to_thread(file.write, piece)
                    count += len(piece)
                    limit.reschedule(begun + seconds + count / SLOWEST)
    except TimeoutError:
        message = f"the file did not arrive within {seconds:g} s plus one for each 16 KiB; send it faster"
        raise _closing(ApiError(408, message)) from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large(request.app[FRONT].settings.offline.batch_bytes) from None
    except (ValueError, AssertionError, web.RequestPayloadError, HttpProcessingError) as error:
        request.content.feed_eof()
        message = f"the form cannot be read ({str(error)[:200]}); send multipart/form-data"
        raise _closing(bad_request(message, "file")) from None
    except ApiError as error:
        raise _closing(error) from None
    return found


def _closing(error: ApiError) -> ApiError:
    """Return the error with the header that closes the connection, since the rest of the body is not read."""
    error.headers["Connection"] = "close"
    return error


async def _piece(part: BodyPartReader) -> bytes:
    """Return the next bytes. Pieces are large, so that each is worth a thread."""
    made = bytearray()
    while len(made) < PIECE and not part.at_eof():
        made += await part.read_chunk(1 << 16)
    return bytes(made)


async def _text(part: BodyPartReader) -> str:
    made = bytearray()
    while not part.at_eof():
        made += await part.read_chunk()
        if len(made) > LONGEST_FIELD:
            raise bad_request(
                f"{part.name} is longer than {LONGEST_FIELD} bytes; send the file as the field file", part.name
            )
    return made.decode("utf-8", "replace")


def _checked(fields: dict[str, str]) -> dict[str, Any]:
    """Return the values of the form, checked by their fields; raise a 400."""
    values: dict[str, Any] = {}
    for field in UPLOAD_FIELDS:
        if field.name in fields:
            text: Any = fields[field.name]
            values[field.name] = field.kind.read(_number(text) if isinstance(field.kind, Integer) else text, field.name)
        elif field.required:
            raise bad_request(f"{field.name} is missing; give it", field.name, "missing_required_parameter")
    if (_ANCHOR in values) != (_SECONDS in values):
        raise bad_request("expires_after needs both anchor and seconds; give them, or neither", "expires_after")
    return values


def _number(text: str) -> int | str:
    """Return the integer that a form or a query has as text, or the text if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else text


async def list_files(request: web.Request) -> web.Response:
    thread, asked = store_of(request), query(request, LIST_FIELDS)
    after = asked.get("after", "")
    try:
        files, more = await thread.call(
            thread.store.list_files,
            request[CALLER].tenant,
            purpose=asked.get("purpose", ""),
            after=after,
            limit=asked.get("limit", 10_000),
            descending=asked.get("order", "desc") == "desc",
        )
    except KeyError:
        raise bad_request(f"after is {shown(after)}, which is no file here; give the last_id of a page", "after") from None
    return web.json_response(files_view(files, more))


async def _found(request: web.Request) -> FileRecord:
    """Return the file that the path names, or raise a 404."""
    thread, id = store_of(request), request.match_info["id"]
    file = await thread.call(thread.store.file, request[CALLER].tenant, id)
    if file is None or (file.expires_at is not None and file.expires_at <= time.time()):
        raise ApiError(404, f"there is no file {shown(id)}", param="id")
    return file


async def one_file(request: web.Request) -> web.Response:
    return web.json_response(file_view(await _found(request)))


async def content(request: web.Request) -> web.StreamResponse:
    """Return the contents of a file, as uploaded or as written by a batch."""
    file = await _found(request)
    path = store_of(request).store.path(file.id)
    if not await asyncio.to_thread(path.is_file):
        message = f"the content of file {file.id} is gone: it was removed from batch_dir; delete the file"
        raise ApiError(404, message, param="id")
    headers = {"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff"}
    return web.FileResponse(path, headers=headers)


async def delete(request: web.Request) -> web.Response:
    thread, file = store_of(request), await _found(request)
    try:
        with storing():
            await thread.call(thread.store.delete_file, file.tenant, file.id)
    except FileInUse as error:
        raise ApiError(409, str(error), param="id", code="conflict") from None
    answer: DeletedAnswer = {"id": file.id, "object": "file", "deleted": True}
    return web.json_response(answer)

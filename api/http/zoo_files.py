"""The files of a zoo over HTTP, for workers on other machines: whole or by ranges, each with an ETag that follows from its
content.

Answers with the zoo's own files alone, by the paths of its layout, and changes nothing. Who reads compares what comes with
its hash, so nothing is hashed here that has its hash in its name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from aiohttp import web

from ...gpu.errors import CheckpointError
from ...gpu.regular_file import open_regular
from ...zoo.layout import CHAIN, Layout, is_hash

PIECE = 1 << 20  # bytes read and sent at a time
FOLDERS = ("tensors", "components", "deltas", "files", "profiles", "equivalences", "surrogates", "stitches")
CLOSE_SECONDS = 2.0  # for answers that are being sent when it ends


class ZooFiles:
    """The files of the zoo in folder ``root`` (see the module). sent: bytes of files that were sent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mark = Layout(root).mark.name
        self.sent = 0
        self.app = web.Application()
        self.app.router.add_get("/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = self._place(request.match_info["path"])
        if path is None:
            raise web.HTTPNotFound(text=f"{request.path} is no file of this zoo; ask for /zoo.json\n")
        try:
            fd = open_regular(path)
        except (OSError, CheckpointError):
            raise web.HTTPNotFound(text=f"{request.path} is not in this zoo\n") from None
        try:
            return await self._send(request, path, fd)
        finally:
            os.close(fd)

    def _place(self, text: str) -> Path | None:
        """Return the file of a path, or None if it is not one of the layout's."""
        parts = text.split("/")
        names = all(part and part[0] != "." for part in parts)
        if not names or not (parts == [self._mark] or parts[0] in (*FOLDERS, "chains")):
            return None
        if parts[0] == "chains" and not (len(parts) == 3 and parts[2] == CHAIN):
            return None  # the other names in there are links to files
        return self._root.joinpath(*parts)

    async def _send(self, request: web.Request, path: Path, fd: int) -> web.StreamResponse:
        size, tag = os.fstat(fd).st_size, _tag(path, fd)
        headers = {"ETag": tag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if tag in [one.strip() for one in request.headers.get("If-None-Match", "").split(",")]:
            return web.Response(status=304, headers=headers)
        first, last = 0, size
        if "Range" in request.headers and request.headers.get("If-Range", tag) == tag:
            try:
                first, last, _ = request.http_range.indices(size)
            except ValueError:  # several ranges, or other units: the whole file is an answer, too
                pass
            else:
                if first >= last:
                    headers["Content-Range"] = f"bytes */{size}"
                    return web.Response(status=416, headers=headers)
        answer = web.StreamResponse(status=200 if last - first == size else 206, headers=headers)
        if answer.status == 206:
            answer.headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        answer.content_length = last - first
        await answer.prepare(request)
        if request.method != "HEAD":
            while first < last:
                piece = await asyncio.to_thread(os.pread, fd, min(PIECE, last - first), first)
                if not piece:
                    raise ConnectionResetError(f"{path} has become shorter")
                await answer.write(piece)
                self.sent += len(piece)
                first += len(piece)
            await answer.write_eof()
        return answer


def _tag(path: Path, fd: int) -> str:
    """Return the ETag of a file: the hash in its name, or the hash of its bytes."""
    name = path.name.partition(".")[0]
    if is_hash(name, 64) or is_hash(name, 32):
        return f'"{name}"'
    digest = hashlib.blake2b(digest_size=16)
    at = 0
    while piece := os.pread(fd, PIECE, at):
        digest.update(piece)
        at += len(piece)
    return f'"{digest.hexdigest()}"'


async def open_files(files: ZooFiles, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Listen, and return what listens and its address. Raises OSError."""
    runner = web.AppRunner(files.app, access_log=None, shutdown_timeout=CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    bound = runner.addresses[0]
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return runner, f"http://{shown}:{bound[1]}"

"""Bodies with a ``Content-Encoding``: decoded in pieces, refused in one sentence, left packed if no handler reads them."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.api.raw import BODY, listening, post
from blockwright.tests.claims import claim


def bare(data: bytes) -> bytes:
    """Return deflated data without zlib's header."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TAKEN = {
    "gzip": ("gzip", gzip.compress(BODY)),
    "its older name": ("x-gzip", gzip.compress(BODY)),
    "another case": (" GZip ", gzip.compress(BODY)),
    "two files": ("gzip", gzip.compress(BODY[:5]) + gzip.compress(BODY[5:])),
    "zlib": ("deflate", zlib.compress(BODY)),
    "no zlib header": ("deflate", bare(BODY)),
    "identity": ("identity", BODY),
    "identity and gzip": ("identity, gzip", gzip.compress(BODY)),
    "nothing": ("", BODY),
}
REFUSED = {
    "brotli": (415, "'br' is not known", "br", BODY),
    "zstd": (415, "'zstd' is not known", "zstd", BODY),
    "gzip twice": (415, "'gzip, gzip' names more than one", "gzip, gzip", gzip.compress(gzip.compress(BODY))),
    "with a weight": (415, "'gzip;q=1' is not known", "gzip;q=1", gzip.compress(BODY)),
    "no gzip": (400, "cannot be read as gzip (it is broken)", "gzip", BODY),
    "a cut end": (400, "cannot be read as gzip (its end is missing)", "gzip", gzip.compress(BODY)[:-3]),
    "more after the end": (
        400,
        "cannot be read as deflate (it goes on after its end)",
        "deflate",
        zlib.compress(BODY) + b"x",
    ),
}


@pytest.mark.parametrize("kind", TAKEN)
async def test_known_codings(folder: Path, kind: str) -> None:
    coding, body = TAKEN[kind]
    async with listening(folder, lambda generation: one_by_one([70])) as server:
        head = b"Content-Encoding: " + coding.encode(), b"Content-Length: %d" % len(body)
        ((status, answer),) = await server.answers(post(*head, body=body), 1)
    assert (status, answer["object"]) == (200, "text_completion")


@pytest.mark.parametrize("kind", REFUSED)
async def test_other_codings_and_broken_bodies(folder: Path, kind: str) -> None:
    status, message, coding, body = REFUSED[kind]
    async with listening(folder, lambda generation: ()) as server:
        head = b"Content-Encoding: " + coding.encode(), b"Content-Length: %d" % len(body)
        ((found, answer),) = await server.answers(post(*head, body=body), 1)
    assert found == status
    assert message in answer["error"]["message"]


async def test_two_headers_are_one_list(folder: Path) -> None:
    body = gzip.compress(BODY)
    async with listening(folder, lambda generation: ()) as server:
        head = b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Length: %d" % len(body)
        ((status, answer),) = await server.answers(post(*head, body=body), 1)
    assert (status, "'gzip, br' names more than one" in answer["error"]["message"]) == (415, True)


@claim("A packed body is unpacked in pieces of 64 KiB, and only where a handler reads it", of="http-api")
@pytest.mark.parametrize("path", ["/nothing", "/health", "/v1/completions", "/v1/files"])
async def test_a_bomb_is_unpacked_in_small_pieces_or_not_at_all(
    folder: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that no handler reads stays packed, and the next request on its connection is answered."""
    unpacked: list[int] = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inner = make(wbits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def decompress(self, data: bytes, limit: int) -> bytes:
            piece = self._inner.decompress(data, limit)
            unpacked.append(len(piece))
            return piece

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    bomb = gzip.compress(b" " * (32 << 20))
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with listening(folder, lambda generation: (), max_body=1 << 20) as server:
        ((status, _),) = await server.answers(head % len(bomb) + bomb, 1)
    if path == "/v1/completions":
        assert status == 413
        assert max(unpacked) <= 1 << 16
        assert sum(unpacked) <= (1 << 20) + (1 << 16)
    else:
        assert status in (200, 404, 405, 503)
        assert unpacked == []


async def test_a_packed_upload(folder: Path, tmp_path: Path) -> None:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}})
    rows = "\n".join([line] * 3000)
    form = (
        '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{rows}\r\n--x--\r\n'
    ).encode()
    for data, status in (
        (form, 200),
        (form.replace(b"batch", b"b" * (4 << 20), 1), 400),
        (b"a line before the form\n" * 200_000, 413),
    ):
        body = gzip.compress(data)
        head = (
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        batches = str(tmp_path / "batches")
        async with listening(folder, lambda generation: (), batch_dir=batches, batch_bytes=1 << 20) as server:
            ((found, answer),) = await server.answers(head + body, 1)
        assert found == status, answer
        if status == 200:
            assert answer["bytes"] == len(rows)

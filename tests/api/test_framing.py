"""Request smuggling: whatever a proxy in front might read otherwise is refused, and its connection closed.

Each request is followed by another one, which must not be answered where the first one's end is in doubt.
"""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.api.raw import CHUNKED, OTHER, listening, post
from blockwright.tests.claims import claim

TE = b"Transfer-Encoding: chunked"
REFUSED = {
    "two lengths": post(b"Content-Length: 14", b"Content-Length: 5"),
    "two equal lengths": post(b"Content-Length: 14", b"Content-Length: 14"),
    "a list of lengths": post(b"Content-Length: 14, 14"),
    "length, then chunks": post(b"Content-Length: 14", TE, body=CHUNKED),
    "chunks, then length": post(TE, b"Content-Length: 14", body=CHUNKED),
    "a length in a trailer": post(TE, body=CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n"),
    "length with a sign": post(b"Content-Length: +14"),
    "length below nothing": post(b"Content-Length: -1"),
    "length in hexadecimal": post(b"Content-Length: 0xe"),
    "length with a low line": post(b"Content-Length: 1_4"),
    "no length in it": post(b"Content-Length: "),
    "length beyond 64 bits": post(b"Content-Length: 99999999999999999999"),
    "an unknown coding": post(b"Transfer-Encoding: xchunked", body=CHUNKED),
    "identity": post(b"Transfer-Encoding: identity"),
    "chunked, and not at last": post(b"Transfer-Encoding: chunked, identity", body=CHUNKED),
    "chunked twice": post(TE, TE, body=CHUNKED),
    "compressed chunks": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKED),
    "chunks of HTTP/1.0": post(TE, body=CHUNKED, version=b"1.0"),
    "a space before the colon": post(b"Transfer-Encoding : chunked", body=CHUNKED),
    "a vertical tab": post(b"Transfer-Encoding:\x0bchunked", body=CHUNKED),
    "a folded coding": post(b"Transfer-Encoding:\r\n chunked", body=CHUNKED),
    "a folded header": post(b"X: a\r\n b", b"Content-Length: 14"),
    "a header that begins with a space": post(b" X: a", b"Content-Length: 14"),
    "lines that end in LF": post(b"Content-Length: 14", line=b"\n"),
    "a lone CR": post(b"X: a\rContent-Length: 3", b"Content-Length: 14"),
    "a NUL": post(b"X: a\0b", b"Content-Length: 14"),
    "two hosts": post(b"Host: other", b"Content-Length: 14"),
    "a chunk that ends in LF": post(TE, body=CHUNKED.replace(b"\r\n", b"\n")),
    "a chunk longer than it says": post(TE, body=CHUNKED.replace(b"}\r\n", b"}XX\r\n")),
    "a chunk of negative size": post(TE, body=b"-" + CHUNKED),
    "a chunk size with 0x": post(TE, body=b"0x" + CHUNKED),
    "a chunk size beyond 64 bits": post(TE, body=b"f" * 17 + CHUNKED[1:]),
    "a chunk size with a space": post(TE, body=b"e " + CHUNKED[1:]),
    "a chunk extension with LF": post(TE, body=b"e;a\nb" + CHUNKED[1:]),
}
TAKEN = {
    "a length": post(b"Content-Length: 14"),
    "chunks": post(TE, body=CHUNKED),
    "a chunk extension": post(TE, body=b"e;a=b" + CHUNKED[1:]),
    "a coding in capitals": post(b"transfer-encoding: Chunked", body=CHUNKED),
}


@claim("Request smuggling and malformed framing are refused", of="security")
@pytest.mark.parametrize("what", REFUSED)
async def test_what_has_two_ends_is_refused_and_hides_nothing(folder: Path, what: str) -> None:
    async with listening(folder, lambda generation: one_by_one([70])) as server:
        said = await server.whole(REFUSED[what] + OTHER)
        assert (len(re.findall(rb"HTTP/1\.\d \d", said)), said.split()[1]) == (1, b"400"), said
        assert b'{"error": {"message": "' in said
        assert b'"live"' not in said
        assert server.port.streams == []


@pytest.mark.parametrize("what", TAKEN)
async def test_what_has_one_end_is_answered_and_so_is_what_follows(folder: Path, what: str) -> None:
    async with listening(folder, lambda generation: one_by_one([70])) as server:
        first, second = await server.answers(TAKEN[what] + OTHER, 2)
        assert (first[0], first[1]["object"]) == (200, "text_completion")
        assert second == (200, {"status": "live"})
        assert len(server.port.streams) == 1


async def test_a_body_that_nobody_reads_is_no_request(folder: Path) -> None:
    inner = OTHER
    for path in (b"/health", b"/nothing"):
        head = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)
        async with listening(folder, lambda generation: ()) as server:
            first, second = await server.answers(head + inner + post(b"Content-Length: 1", body=b"x"), 2)
            assert "live" not in str(first)
            assert second[0] == 400, "the body that is no JSON, and not the probe in the first one's"


@pytest.mark.parametrize("path", [b"/nothing", b"/health", b"/v1/completions"])
async def test_an_expectation_that_is_not_known(folder: Path, path: bytes) -> None:
    """Also on paths and methods that are not served."""
    async with listening(folder, lambda generation: ()) as server:
        for method in (b"GET", b"PUT"):
            said = b"%s %s HTTP/1.1\r\nHost: localhost\r\nExpect: the-moon\r\n\r\n" % (method, path)
            ((status, body),) = await server.answers(said, 1)
            assert (status, body["error"]["code"], body["error"]["type"]) == (
                417,
                "expectation_failed",
                "invalid_request_error",
            )


async def test_a_small_body_that_unpacks_to_a_large_one(folder: Path) -> None:
    packed = gzip.compress(b'{"prompt": "' + b"a" * (64 << 20) + b'"}')
    assert len(packed) < 1 << 17
    async with listening(folder, lambda generation: ()) as server:
        headers = (b"Content-Encoding: gzip", b"Content-Length: %d" % len(packed))
        ((status, body),) = await server.answers(post(*headers, body=packed), 1)
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_garbage_is_refused_and_the_server_goes_on(folder: Path) -> None:
    """Seeded: bytes alone, and good requests with some bytes changed, cut or doubled."""
    dice = random.Random(5)
    async with listening(folder, lambda generation: one_by_one([70]), read_timeout=5.0) as server:
        for _ in range(200):
            good = bytearray(dice.choice([*TAKEN.values()]))
            for _ in range(dice.randrange(1, 4)):
                at = dice.randrange(len(good))
                match dice.randrange(4):
                    case 0:
                        good[at] = dice.randrange(256)
                    case 1:
                        del good[at : at + dice.randrange(1, 9)]
                    case 2:
                        good[at:at] = good[: dice.randrange(1, 30)]
                    case 3:
                        good = bytearray(dice.randbytes(dice.randrange(1, 200)))
            async with server.connect() as (reader, writer):
                writer.write(bytes(good))
                writer.write_eof()
                said = await reader.read()
            for line in (line for line in said.split(b"\r\n") if line.startswith(b"HTTP/")):
                assert line.split()[1] in (b"200", b"100", b"400", b"404", b"405", b"413", b"417", b"421"), (good, said)
        ((status, _),) = await server.answers(post(b"Content-Length: 14"), 1)
        assert status == 200

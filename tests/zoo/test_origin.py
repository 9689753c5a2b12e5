"""Origins: a zoo in a folder or behind an address, read by ranges, and what is no origin."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.zoo.served_folder import ServedFolder, served_folder
from blockwright.zoo.add import add
from blockwright.zoo.errors import OriginError
from blockwright.zoo.origin import Origin, check_origin, open_origin, shown_address

Make = Callable[..., Path]
NAME = Path("some/file")


@pytest.fixture
def zoo(checkpoint: Make, tmp_path: Path) -> Path:
    add(tmp_path / "zoo", str(checkpoint("llama")), "m")
    return tmp_path / "zoo"


def read(origin: Origin, first: int) -> tuple[bytes, int]:
    """The bytes from ``first`` on, and how many came."""
    counts = list[int]()
    return b"".join(bytes(piece) for piece in origin.stream(NAME, first, counts.append)), sum(counts)


def once(address: str, first: int) -> tuple[bytes, int]:
    """The same from an origin that is opened for this."""
    with closing(open_origin(address)) as origin:
        return read(origin, first)


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    """3 MB, more than what is read at a time."""
    content = bytes(n * 7 % 251 for n in range(1000)) * 3000
    (tmp_path / "root" / "some").mkdir(parents=True)
    (tmp_path / "root" / NAME).write_bytes(content)
    return content


@pytest.mark.parametrize("first", [0, 1, 1 << 20, 2_999_999, 3_000_000])
def test_a_folder_and_an_address_give_the_same(file: bytes, tmp_path: Path, first: int) -> None:
    assert once(str(tmp_path / "root"), first) == (file[first:], len(file) - first)
    with served_folder(tmp_path / "root") as served:
        assert once(served.address, first) == (file[first:], len(file) - first)
        assert served.asked == [(str(NAME), f"bytes={first}-" if first else "")]


@claim("An origin that knows no ranges works, whole", of="serving")
def test_without_ranges_the_whole_comes_and_what_is_before_is_skipped(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served:
        served.ranges = False
        for first in (0, 5, (1 << 20) + 3, len(file)):
            assert once(served.address, first) == (file[first:], len(file))


def test_what_comes_with_an_address_goes_with_every_request_and_is_never_shown(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served:
        served.query = "sig=secret"
        address = served.address.replace("http://", "http://me:pass%20word@") + "/?sig=secret"
        assert once(address, 0)[0] == file
        assert served.authorization == {"Basic bWU6cGFzcyB3b3Jk"}
        assert shown_address(address) == served.address == open_origin(address).where
        with closing(open_origin(address)) as origin, pytest.raises(OriginError) as refused:
            origin.read(Path("nowhere"), lambda n: None)
    assert str(refused.value) == f"{served.address}/nowhere answers 404 Not Found"


def test_a_zoo_is_an_origin(zoo: Path) -> None:
    check_origin(str(zoo))
    with served_folder(zoo) as served:
        check_origin(served.address)
        check_origin(f"{served.address}/")


@claim("An origin that is none is refused with the field, the value and the remedy", of="serving")
def test_what_is_no_origin_is_refused(zoo: Path, tmp_path: Path) -> None:
    remedy = "give the address or the folder of a zoo, as 'blockwright zoo serve' prints it"

    def refused(text: str) -> str:
        with pytest.raises(OriginError) as error:
            check_origin(text)
        return str(error.value)

    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        why = f"which gives no zoo ({nobody} does not answer: Connection refused)"
        assert refused(nobody) == f"origin is {nobody!r}, {why}; {remedy}"
    with served_folder(zoo) as served:
        there = f"{served.address}/chains"
        why = f"which gives no zoo ({there}/zoo.json answers 404 Not Found)"
        assert refused(there) == f"origin is {there!r}, {why}; {remedy}"
    (tmp_path / "plain").mkdir()
    missing = tmp_path / "plain" / "zoo.json"
    assert refused(str(tmp_path / "plain")) == (
        f"origin is '{tmp_path / 'plain'}', which gives no zoo ({missing}: No such file or directory); {remedy}"
    )
    missing.write_text("{}")
    assert refused(str(tmp_path / "plain")).startswith(f"origin is '{tmp_path / 'plain'}', which is no zoo (zoo.json is ")
    for strange in ("ftp://host/zoo", "http://", "http://host:70000", "s3://bucket"):
        assert refused(strange) == f"origin is {strange!r}; give http://HOST:PORT or https://HOST, or a zoo's folder"


def test_a_connection_that_breaks_ends_the_stream_early(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served:
        served.cut[str(NAME)] = [1000]
        got = bytearray()
        with closing(open_origin(served.address)) as origin, contextlib.suppress(OriginError):  # it depends on the Python
            for piece in origin.stream(NAME, 0, lambda n: None):
                got.extend(piece)
        assert bytes(got) == file[:1000]


def test_another_range_than_was_asked_for_is_not_taken(file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ServedFolder.answer

    def wrong(self: ServedFolder, request: object) -> None:
        request.headers.replace_header("Range", "bytes=7-")  # type: ignore[attr-defined]
        answer(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(ServedFolder, "answer", wrong)
    with served_folder(tmp_path / "root") as served, pytest.raises(OriginError, match="another range than was asked for"):
        once(served.address, 5)


@claim("Files of an origin come over connections that stay open: one for each request at a time", of="serving")
def test_requests_share_a_connection(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served, closing(open_origin(served.address)) as origin:
        for first in (0, 7, 2_999_999):
            assert read(origin, first)[0] == file[first:]
            with pytest.raises(OriginError, match="404"):
                origin.read(Path("nowhere"), lambda n: None)
        assert (len(served.asked), served.connections) == (6, 1)
        with ThreadPoolExecutor(4) as threads:
            assert all(got == (file, len(file)) for got in threads.map(lambda n: read(origin, 0), range(32)))
        assert (len(served.asked), served.connections <= 4) == (38, True)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served, closing(open_origin(served.address)) as origin:
        assert read(origin, 0)[0] == file
        served.hang_up()
        assert read(origin, 5)[0] == file[5:]
        assert served.connections == 2


def test_a_stream_that_is_left_early_keeps_no_connection(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served, closing(open_origin(served.address)) as origin:
        stream = origin.stream(NAME, 0, lambda n: None)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert read(origin, 0)[0] == file
        assert served.connections == 2


def test_a_redirection_is_followed_and_gets_no_password_of_another_server(file: bytes, tmp_path: Path) -> None:
    with served_folder(tmp_path / "root") as served, served_folder(tmp_path / "root") as other:
        served.moved = {str(NAME): f"{other.address}/{NAME}", "round": "/round", "away": "file:///etc/passwd"}
        with closing(open_origin(served.address.replace("http://", "http://me:secret@"))) as origin:
            assert read(origin, 5)[0] == file[5:]
            assert (served.authorization, other.authorization) == ({"Basic bWU6c2VjcmV0"}, {""})
            for path, why in (("round", "more than 5 times"), ("away", "another place than an address")):
                with pytest.raises(OriginError, match=why):
                    origin.read(Path(path), lambda n: None)


def test_a_proxy_of_the_environment_is_asked(file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_folder(tmp_path / "root") as proxy:
        monkeypatch.setenv("http_proxy", proxy.address.replace("http://", "http://me:secret@"))
        monkeypatch.setenv("no_proxy", "")
        with closing(open_origin("http://zoo.example")) as origin, pytest.raises(OriginError, match="404"):
            origin.read(NAME, lambda n: None)
        assert proxy.asked == [(f"http://zoo.example/{NAME}", "")]
        assert (proxy.authorization, proxy.proxied) == ({""}, {"Basic bWU6c2VjcmV0"})

"""The files of a zoo over HTTP: ranges, ETags that follow from content, and nothing beside the zoo's own files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from blockwright.api.http.zoo_files import ZooFiles, open_files
from blockwright.tests.claims import claim
from blockwright.zoo.add import add
from blockwright.zoo.layout import Layout
from blockwright.zoo.origin import open_origin

CLIENTS = 32
Answer = tuple[int, bytes, Mapping[str, str]]


class Asked:
    """A zoo that is served, and what it answers."""

    def __init__(self, root: Path, files: ZooFiles, address: str, session: aiohttp.ClientSession) -> None:
        self.root, self.files = root, files
        self.address, self._session = address, session
        self.tensor = max((root / "tensors").glob("*/*"), key=lambda path: path.stat().st_size)

    async def __call__(self, path: str | Path, method: str = "GET", **headers: str) -> Answer:
        name = path.relative_to(self.root) if isinstance(path, Path) else path
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self._session.request(method, f"{self.address}/{name}", headers=named) as answer:
            return answer.status, await answer.read(), answer.headers


@pytest.fixture
async def asked(checkpoint: Callable[..., Path], tmp_path: Path) -> AsyncIterator[Asked]:
    add(tmp_path / "zoo", str(checkpoint("llama")), "m")
    files = ZooFiles(tmp_path / "zoo")
    runner, address = await open_files(files, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        yield Asked(tmp_path / "zoo", files, address, session)
    await runner.cleanup()


@claim("`zoo serve` gives a zoo's files by ranges, with ETags that follow from their content", of="command-line")
async def test_a_file_whole_and_in_part(asked: Asked) -> None:
    whole = asked.tensor.read_bytes()
    status, body, headers = await asked(asked.tensor)
    assert (status, body, headers["ETag"], headers["Accept-Ranges"]) == (200, whole, f'"{asked.tensor.stem}"', "bytes")
    status, body, headers = await asked(asked.tensor, Range="bytes=100-")
    assert (status, body) == (206, whole[100:])
    assert headers["Content-Range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
    assert (await asked(asked.tensor, Range="bytes=7-9"))[:2] == (206, whole[7:10])
    assert (await asked(asked.tensor, Range="bytes=-5"))[:2] == (206, whole[-5:])
    status, _, headers = await asked(asked.tensor, Range=f"bytes={len(whole)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(whole)}")
    for strange in ("bytes=1-2,4-5", "lines=1-2"):
        assert (await asked(asked.tensor, Range=strange))[:2] == (200, whole)
    assert asked.files.sent == 3 * len(whole) + len(whole) - 100 + 3 + 5
    status, body, headers = await asked(asked.tensor, "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(whole)))


async def test_what_is_known_is_not_sent_again(asked: Asked) -> None:
    tag = f'"{asked.tensor.stem}"'
    assert (await asked(asked.tensor, If_None_Match=f'"x", {tag}'))[:2] == (304, b"")
    assert (await asked(asked.tensor, Range="bytes=100-", If_Range='"other"'))[0] == 200
    assert (await asked(asked.tensor, Range="bytes=100-", If_Range=tag))[0] == 206
    chain = asked.root / "chains" / "m" / "chain.json"
    first = (await asked(chain))[2]["ETag"]
    chain.write_bytes(chain.read_bytes() + b" ")
    assert (await asked(chain))[2]["ETag"] != first


async def test_nothing_else_is_given(asked: Asked) -> None:
    (asked.root / "tmp" / "file").write_text("half")
    (asked.root / "secret").write_text("x")
    (asked.root / "tensors" / ".hidden").write_text("x")
    for path in ("", "lock", "tmp/file", "secret", "tensors", "tensors/", "tensors/.hidden", "tensors//x", "%2e%2e/x"):
        assert (await asked(path))[0] == 404, path
    for path in ("chains/m/config.json", "chains/m", "chains/other/chain.json", f"components/{'0' * 32}.json"):
        assert (await asked(path))[0] == 404, path
    assert (await asked("zoo.json", "POST"))[0] == 405
    for path in (Layout(asked.root).mark, *asked.root.glob("components/*"), *asked.root.glob("files/*")):
        assert (await asked(path))[:2] == (200, path.read_bytes())


@claim("`zoo serve` gives many clients at a time each file whole", of="command-line")
async def test_many_clients_at_a_time(asked: Asked) -> None:
    files = [path.relative_to(asked.root) for path in asked.root.glob("tensors/*/*")]
    together = threading.Barrier(CLIENTS)

    def read_all() -> list[bytes]:
        with closing(open_origin(asked.address)) as origin:
            together.wait()
            return [origin.read(path, lambda nbytes: None) for path in files]

    whole = [(asked.root / path).read_bytes() for path in files]
    with ThreadPoolExecutor(CLIENTS) as threads:
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(threads, read_all) for _ in range(CLIENTS)))
    assert all(one == whole for one in found)
    assert asked.files.sent == CLIENTS * sum(map(len, whole))

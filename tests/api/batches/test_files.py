"""``/v1/files`` over HTTP: what comes is kept as it came, what is no JSONL is refused by line and reason."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData
from yarl import URL

from blockwright.actors.settings.errors import SettingsError
from blockwright.api.batches import upload
from blockwright.api.batches.folder import PART, PartFile
from blockwright.tests.api.batches.batch_rig import BatchRig, line, parts
from blockwright.tests.api.raw import listening
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until


@pytest.fixture
async def rig(serve: Any, tmp_path: Path) -> BatchRig:
    client, _ = await serve(
        settings={"batch_dir": str(tmp_path), "batch_bytes": 4000, "batch_requests": 9, "max_body": 1000}
    )
    return BatchRig(client)


async def test_a_file_comes_is_read_listed_and_deleted(rig: BatchRig, tmp_path: Path) -> None:
    data = line("a") + b"\n" + line("b").rstrip(b"\n")
    status, file = await rig.upload(data, name="C:\\mine\\in.jsonl")
    assert status == 200
    assert (file["object"], file["bytes"], file["filename"], file["purpose"]) == ("file", len(data), "in.jsonl", "batch")
    assert (await rig.ask("GET", f"/v1/files/{file['id']}"))[1] == file
    async with rig.client.get(f"/v1/files/{file['id']}/content") as answer:
        assert (await answer.read(), answer.headers["Content-Type"]) == (data, "application/octet-stream")
    _, other = await rig.upload(line("c"))
    status, page = await rig.ask("GET", "/v1/files?purpose=batch&limit=1&order=asc")
    assert (page["data"], page["has_more"], page["last_id"]) == ([file], True, file["id"])
    status, page = await rig.ask("GET", f"/v1/files?order=asc&after={file['id']}")
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([other["id"]], False)
    assert await rig.ask("DELETE", f"/v1/files/{file['id']}") == (200, {"id": file["id"], "object": "file", "deleted": True})
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        status, body = await rig.ask(method, f"/v1/files/{file['id']}{path}")
        assert (status, body["error"]["code"]) == (404, "not_found")
    assert parts(tmp_path) == [other["id"]]


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"", "empty_file", "the file has no lines"),
        (b"\n \n", "empty_file", "the file has no lines"),
        (
            b"custom_id,prompt\na,b\n",
            "invalid_jsonl",
            "line 1 is not valid JSON (Expecting value: line 1 column 1 (char 0))",
        ),
        (b'[\n{"a": 1},\n{"b": 2}\n]\n', "invalid_jsonl", "line 1 is not valid JSON"),
        (b'\n"text"\n', "invalid_jsonl", "line 2 is not a JSON object; 1 of 1 lines"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "invalid_jsonl", "line 1 is not valid JSON"),
        (b"[" * 900 + b"\n", "invalid_jsonl", "line 1"),
        (line("a", prompt="x" * 1200), "invalid_jsonl", "line 1 is longer than 1000 bytes (max_body)"),
        (b"\n" * 40, "invalid_jsonl", "the file has more than 36 lines, most of them empty; leave those out"),
        (b"{}\n" * 10, "too_many_requests", "more than 9 requests (batch_requests); split it"),
    ],
)
async def test_what_is_no_file_of_requests_is_refused(
    rig: BatchRig, tmp_path: Path, data: bytes, code: str, says: str
) -> None:
    status, body = await rig.upload(data)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, code, "file")
    assert says in body["error"]["message"]
    assert parts(tmp_path) == []


async def test_a_few_broken_lines_are_the_batchs_matter(rig: BatchRig) -> None:
    assert (await rig.upload(b"broken\n" + line("a")))[0] == 200


async def test_too_large_a_file_is_refused_as_it_comes(rig: BatchRig, tmp_path: Path) -> None:
    async def endless() -> Any:
        """As curl sends a pipe: nobody knows the length."""
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(100):
            yield line("a", prompt="x" * 800)
        yield b"\r\n--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with rig.client.post("/v1/files", data=endless(), headers=headers) as answer:
        body = await answer.json()
    assert (answer.status, body["error"]["param"]) == (413, "file")
    assert "limit of 4000 bytes (batch_bytes); split it" in body["error"]["message"]
    status, _ = await rig.upload(b"x" * (2 << 20))
    assert status == 413
    assert parts(tmp_path) == []


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"purpose": "fine-tune"}, "purpose", "purpose is 'fine-tune'; give one of batch"),
        ({"purpose": "x" * 2000}, "purpose", "longer than 1024 bytes"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after", "both anchor and seconds"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after[seconds]",
            "is 5; give an integer from 3600 to 2592000",
        ),
    ],
)
async def test_fields_of_the_form_are_checked(rig: BatchRig, fields: dict[str, str], param: str, says: str) -> None:
    status, body = await rig.upload(line("a"), **fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert says in body["error"]["message"]


async def test_a_form_of_very_many_fields_is_refused(rig: BatchRig) -> None:
    status, body = await rig.upload(line("a"), **{f"field{i}": "x" for i in range(20)})
    assert (status, body["error"]["message"]) == (400, "the form has more than 16 fields; send file and purpose")


async def test_a_file_that_somebody_has_removed_from_the_disk(rig: BatchRig, tmp_path: Path) -> None:
    _, file = await rig.upload(line("a"))
    (tmp_path / "files" / file["id"]).unlink()
    status, body = await rig.ask("GET", f"/v1/files/{file['id']}/content")
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert "it was removed from batch_dir; delete the file" in body["error"]["message"]
    assert (await rig.ask("DELETE", f"/v1/files/{file['id']}"))[0] == 200


@pytest.mark.parametrize("id", ["..%2F..%2Fetc%2Fpasswd", "file-a%2Fb", "%2e%2e", "a%00b", "x" * 3000, "%ff"])
async def test_ids_that_nobody_gave(rig: BatchRig, id: str) -> None:
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/batches/{id}"):
        status, body = await rig.ask("GET", URL(path, encoded=True))
        assert status in (400, 404), path
        assert body["error"]["message"]


async def test_forms_that_are_none(rig: BatchRig, tmp_path: Path) -> None:
    status, body = await rig.ask("POST", "/v1/files", json={"purpose": "batch"})
    assert (status, "multipart/form-data" in body["error"]["message"]) == (400, True)
    form = FormData()
    form.add_field("file", line("a"), filename="f")
    status, body = await rig.ask("POST", "/v1/files", data=form)
    assert (status, body["error"]["message"]) == (400, "purpose is missing; give it")
    torn = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{"a": 1}\n'
    forbidden = b'--x\r\nContent-Disposition: form-data; name="file"; filename="\0"\r\n\r\n{}\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (torn, forbidden):
        async with rig.client.post("/v1/files", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert "the form cannot be read" in (await answer.json())["error"]["message"]
    assert parts(tmp_path) == []


async def test_a_full_disk_is_said(rig: BatchRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: PartFile) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PartFile, "keep", full)
    status, body = await rig.upload(line("a"))
    assert (status, body["error"]["code"]) == (507, "insufficient_storage")
    assert "No space left on device" in body["error"]["message"]
    assert parts(tmp_path) == []


async def test_times_of_files(rig: BatchRig) -> None:
    anchor, seconds = "expires_after[anchor]", "expires_after[seconds]"
    _, file = await rig.upload(line("a"), **{anchor: "created_at", seconds: "3600"})
    assert file["expires_at"] == file["created_at"] + 3600
    store = rig.batch_service._store
    assert await rig.batch_service._thread.call(store.expire_files, file["expires_at"]) == [file["id"]]
    assert (await rig.ask("GET", f"/v1/files/{file['id']}"))[0] == 404


async def test_a_client_that_goes_away_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    head += b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    begun = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{"a": 1}\n'
    async with listening(folder, lambda generation: (), batch_dir=str(tmp_path)) as server:
        async with server.connect() as (_, writer):
            writer.write(head + begun)
            await until(lambda: parts(tmp_path))
        await until(lambda: not parts(tmp_path))


async def test_one_that_goes_away_while_the_file_is_opened_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens it does not know yet that nobody waits for it."""
    go = threading.Event()

    class Slow(PartFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            assert go.wait(PATIENCE)

    monkeypatch.setattr(upload, "PartFile", Slow)
    uploading = asyncio.create_task(upload.opened(tmp_path / "f", most_lines=1, most_bytes=1, longest=1))
    await until(lambda: [*tmp_path.iterdir()])
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    go.set()
    await until(lambda: not [*tmp_path.iterdir()])


async def test_one_that_goes_away_when_all_has_come_leaves_it_stored(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, kept = threading.Event(), PartFile.keep

    def keep(part: PartFile) -> int:
        size = kept(part)
        assert go.wait(PATIENCE)
        return size

    monkeypatch.setattr(PartFile, "keep", keep)
    client, _ = await serve(settings={"batch_dir": str(tmp_path)})
    rig = BatchRig(client)
    uploading = asyncio.create_task(rig.upload(line("a")))
    (name,) = await until(lambda: [name for name in parts(tmp_path) if not name.endswith(PART)])
    uploading.cancel()
    await asyncio.gather(uploading, return_exceptions=True)
    go.set()

    async def listed() -> list[str]:
        return [file["id"] for file in (await rig.ask("GET", "/v1/files"))[1]["data"]]

    assert await until(listed) == [name] == parts(tmp_path)


@claim("Tenants see only their own files and batches", of="offline")
async def test_tenants_see_their_own_files(serve: Any, tmp_path: Path) -> None:
    client, _ = await serve(settings={"batch_dir": str(tmp_path), "api_keys": {"k1": "acme", "k2": "free", "k3": "acme"}})
    first, other, second = (BatchRig(client, key) for key in ("k1", "k2", "k3"))
    _, file = await first.upload(line("a"))
    for path in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        assert (await other.ask("GET", path))[0] == 404
    assert (await other.ask("DELETE", f"/v1/files/{file['id']}"))[0] == 404
    assert (await other.ask("GET", "/v1/files"))[1]["data"] == []
    assert (await second.ask("GET", "/v1/files"))[1]["data"] == [file]


async def test_without_a_folder_there_are_none(serve: Any, tmp_path: Path) -> None:
    client, _ = await serve()
    status, body = await BatchRig(client).ask("GET", "/v1/files")
    assert (status, "--set batch_dir=FOLDER" in body["error"]["message"]) == (404, True)
    (tmp_path / "f").write_text("")
    with pytest.raises(SettingsError, match=r"batch_dir: .* cannot be made"):
        await serve(settings={"batch_dir": str(tmp_path / "f")})

"""Batches where the disk is full, or somebody else writes into their folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.api.batches.batch_rig import BatchRig, Start, held, line, parts
from blockwright.tests.api.fake_port import tokens_emitted
from blockwright.tests.claims import claim
from blockwright.tests.waiting import until


@claim("A full disk loses no answer, and the batch goes on when there is room", of="offline")
async def test_a_full_disk_keeps_answers_until_there_is_room(
    start: Start, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, port = await start(say("x"))
    monkeypatch.setattr("blockwright.api.batches.store_service.AGAIN", 0.01)
    id = await rig.create([line(str(i)) for i in range(20)])
    database = rig.batch_service._store._database

    def shrink() -> None:
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")

    await rig.batch_service._thread.call(shrink)

    async def full() -> bool:
        await rig.ref.look()
        return bool(rig.batch_service.trouble)

    await until(full)
    assert "full" in rig.batch_service.trouble
    assert "full" in (await rig.view(id))["blockwright"]["waits"], "figures that are kept in memory, for none can be written"
    await rig.batch_service._thread.call(lambda: database.execute("PRAGMA max_page_count = 100000"))

    async def ended() -> bool:
        rig.clock.advance(2.0)
        await rig.ref.look()
        return (await rig.view(id))["status"] == "completed"

    await until(ended)
    assert "waits" not in (await rig.view(id))["blockwright"]
    assert len(await rig.lines((await rig.view(id))["output_file_id"])) == 20
    assert len(port.streams) == 20, "none was computed again"


async def test_a_line_whose_answer_finds_no_room_gets_its_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others fit, and wait for nobody."""
    monkeypatch.setattr("blockwright.api.batches.store_service.AGAIN", 0.01)
    monkeypatch.setattr("blockwright.api.batches.store_service.TRIES", 3)
    begun = asyncio.Event()

    def script(generation: Any) -> Any:
        return [begun, tokens_emitted([9] * (20_000 if generation.max_tokens == 5 else 4), finish="length")]

    rig, port = await start(script)
    id = await rig.create([line("large", max_tokens=5), *map(line, "abc")])
    database = rig.batch_service._store._database

    def limit() -> None:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages + 2}")

    async def running() -> bool:
        rig.clock.advance(1.0)
        await rig.ref.look()
        return len(port.streams) == 4

    await until(running)
    await rig.batch_service._thread.call(limit)
    begun.set()

    async def three() -> bool:
        rig.clock.advance(1.0)
        await rig.ref.look()
        counts = (await rig.view(id))["request_counts"]
        return bool(counts["completed"] == 3 and counts["failed"] == 1)

    await until(three)
    assert "had no room for this answer" in caplog.text
    await rig.batch_service._thread.call(lambda: database.execute("PRAGMA max_page_count = 100000"))
    batch = await rig.ended(id)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 4, "completed": 3, "failed": 1})
    response = (await rig.lines(batch["error_file_id"]))["large"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (507, "insufficient_storage")
    assert not rig.batch_service.trouble


async def test_an_input_that_somebody_removes_from_the_disk_ends_the_batch_with_its_answers(
    start: Start, tmp_path: Path
) -> None:
    rig, _ = await start(held([]))
    id = await rig.create([line(str(i)) for i in range(9)])

    async def begun() -> bool:
        await rig.ref.look()
        return bool((await rig.view(id))["request_counts"]["completed"] == 1)

    await until(begun)
    await rig.stop()
    (tmp_path / "files" / (await rig.view(id))["input_file_id"]).unlink()
    again = BatchRig(rig.client)
    await again.start()
    batch = await again.ended(id)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("failed", 1)
    assert [one["code"] for one in batch["errors"]["data"]] == ["input_file_missing"]
    assert len(await again.lines(batch["output_file_id"])) == 1
    await again.stop()


async def test_what_else_lies_in_the_folder_is_nobodys_matter(start: Start, say: Any, tmp_path: Path) -> None:
    """A folder, a pipe nobody writes to, a link to a file that is not ours."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "lost+found").mkdir()
    os.mkfifo(tmp_path / "files" / "pipe")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "files" / "link").symlink_to(tmp_path / "mine")
    rig, _ = await start(say("x"))
    assert (await rig.ended(await rig.create([line("a")])))["status"] == "completed"
    assert (tmp_path / "mine").read_text() == "mine"
    assert {"lost+found", "pipe", "link"} < {*parts(tmp_path)}


@pytest.mark.parametrize("failing", ["finalize", "finish", "begin", "open_batches"])
async def test_what_fails_before_or_behind_the_answers_is_said_and_warned_of_once(
    start: Start, say: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    rig, _ = await start(say("x"))
    store, broken = rig.batch_service._store, True
    real = getattr(store, failing)
    id = await rig.create([line(str(i)) for i in range(3)])

    def fails(*given: Any, **more: Any) -> Any:
        if broken:
            raise OSError("database or disk is full")
        return real(*given, **more)

    monkeypatch.setattr(store, failing, fails)
    seen = list[str]()

    async def look(times: int) -> None:
        for _ in range(times):
            rig.clock.advance(2.0)
            rig.time += 2.0
            await rig.ref.look()
            seen.append((await rig.view(id))["blockwright"].get("waits", ""))

    async def said() -> bool:
        await look(1)
        return bool(seen[-1])

    await until(said)
    await look(20)
    assert seen[-1] == "database or disk is full; free some space below batch_dir"
    assert sum("disk is full" in one.getMessage() for one in caplog.records if one.levelname == "WARNING") == 1
    broken = False

    async def ended() -> bool:
        await look(1)
        return (await rig.view(id))["status"] == "completed"

    await until(ended)
    await look(1)
    assert seen[-1] == ""

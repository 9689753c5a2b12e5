"""The store: results once, statuses in order, pages, and what kill -9 and a full disk leave of it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.batches.database import StoreError
from blockwright.api.batches.folder import PART, RUNNER, FolderLock, PartFile
from blockwright.api.batches.records import INPUT, BatchRecord, FileRecord, ResultRecord
from blockwright.api.batches.results import write_files
from blockwright.api.batches.status import BatchStatus
from blockwright.api.batches.store import DATABASE, BatchStore, FileInUse
from blockwright.tests.claims import claim

FILE = "file-in"


def put(
    store: BatchStore, id: str = FILE, tenant: str = "", data: bytes = b'{"custom_id": "a"}\n', **values: Any
) -> FileRecord:
    """A file in its place."""
    part = PartFile(store.path(id))
    part.file.write(data)
    size = part.keep()
    record = FileRecord(
        id=id,
        tenant=tenant,
        purpose=INPUT,
        filename="in.jsonl",
        nbytes=size,
        created_at=5,
        lines=data.count(b"\n"),
        **values,
    )
    store.add_file(record)
    part.close()
    return record


def made(id: str = "batch_1", tenant: str = "", **values: Any) -> BatchRecord:
    plain = {"key": "k", "endpoint": "/v1/completions", "input_file": FILE, "window": "24h", "created_at": 10}
    return BatchRecord(id=id, tenant=tenant, expires_at=100, **(plain | values))


def result(line: int, *, failed: bool = False, batch: str = "batch_1") -> ResultRecord:
    text = f"{line} {'failed' if failed else 'done'}\n".encode()
    return ResultRecord(
        batch=batch, line=line, failed=failed, text=text, prompt_tokens=5, output_tokens=3, cached_tokens=2, model="m"
    )


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = BatchStore(tmp_path / "batches")
    yield opened
    opened.close()


def test_a_result_is_stored_once_with_what_it_counts(store: BatchStore) -> None:
    put(store, data=b"{}\n" * 3)
    store.add_batch(made())
    store.begin("batch_1", 3, [], 11)
    assert store.add_results([result(0), result(1, failed=True)]) == 2
    assert store.add_results([result(0, failed=True), result(0), result(2)]) == 1
    batch = store.batch("batch_1")
    assert batch is not None
    assert (batch.completed, batch.failed, batch.total) == (2, 1, 3)
    assert (batch.prompt_tokens, batch.output_tokens, batch.cached_tokens, batch.model) == (15, 9, 6, "m")
    assert store.answered("batch_1") == {0: (3, 2), 1: (3, 2), 2: (3, 2)}
    assert [text for _, text in store.texts("batch_1", failed=False)] == [b"0 done\n", b"2 done\n"]
    assert store.add_results([result(0, batch="batch_none")]) == 0, "of no batch"


def test_the_life_of_a_batch(store: BatchStore) -> None:
    put(store, data=b"{}\n{}\n")
    store.add_batch(made(metadata={"a": "b"}))
    assert [(b.id, b.ending) for b in store.open_batches()] == [("batch_1", None)]
    store.begin("batch_1", 2, [{"code": "c"}], 11)
    store.add_results([result(1), result(0, failed=True)])
    assert store.finalize("batch_1", BatchStatus.COMPLETED, 12).status is BatchStatus.FINALIZING
    store.cancel("batch_1", 13)
    batch = store.finalize("batch_1", BatchStatus.EXPIRED, 14)
    assert batch is not None
    assert (batch.status, batch.ending) == (BatchStatus.FINALIZING, BatchStatus.COMPLETED), "the first ending stays"
    write_files(store, batch, 15)
    batch = store.batch("batch_1")
    assert batch is not None
    assert batch.at == {"in_progress": 11, "finalizing": 12, "completed": 15}
    assert (batch.status, batch.metadata, batch.errors) == (BatchStatus.COMPLETED, {"a": "b"}, [{"code": "c"}])
    assert store.path(batch.output_file).read_bytes() == b"1 done\n"
    assert store.path(batch.error_file).read_bytes() == b"0 failed\n"
    assert store.answered("batch_1") == {}, "they are in the files"
    assert store.open_batches() == []
    assert store.add_results([result(0)]) == 0, "nothing comes after the end"
    files, _ = store.list_files("", purpose="batch_output", after="", limit=9, descending=False)
    assert [(f.nbytes, f.lines) for f in files] == [(7, 1), (9, 1)]


@pytest.mark.parametrize(("ending", "code"), [("cancelled", "batch_cancelled"), ("expired", "batch_expired")])
def test_what_ends_early_keeps_what_is_done_and_tells_of_the_rest(store: BatchStore, ending: str, code: str) -> None:
    put(store, data=b'{"custom_id": "a"}\n\n{"custom_id": "b"}\nbroken\n')
    store.add_batch(made())
    store.begin("batch_1", 3, [], 11)
    store.add_results([result(0)])
    if ending == "cancelled":
        store.cancel("batch_1", 12)
    batch = store.finalize("batch_1", BatchStatus.EXPIRED, 13)
    assert batch is not None
    write_files(store, batch, 14)
    batch = store.batch("batch_1")
    assert batch is not None
    assert (batch.status.value, batch.completed, batch.failed) == (ending, 1, 2)
    assert store.path(batch.output_file).read_bytes() == b"0 done\n"
    first, second = store.path(batch.error_file).read_text().splitlines()
    assert f'"code": "{code}"' in first
    assert '"custom_id": "b", "response": null' in first
    assert '"custom_id": null' in second


def test_files_of_open_batches_stay(store: BatchStore) -> None:
    put(store, expires_at=20)
    store.add_batch(made())
    with pytest.raises(FileInUse, match="batch batch_1, which is validating, reads this file; cancel it"):
        store.delete_file("", FILE)
    assert store.expire_files(30) == []
    store.fail("batch_1", [], 11)
    assert store.delete_file("other", FILE) is False
    assert store.expire_files(19) == []
    assert store.expire_files(20) == [FILE]
    assert not store.path(FILE).exists()
    assert store.add_batch(made("batch_2")) is False, "its input is gone"


def test_pages_and_tenants(store: BatchStore) -> None:
    for number in range(5):
        put(store, f"file-{number}", tenant="ab"[number % 2])
    files, more = store.list_files("a", purpose="", after="", limit=2, descending=True)
    assert ([f.id for f in files], more) == (["file-4", "file-2"], True)
    files, more = store.list_files("a", purpose="", after="file-2", limit=2, descending=True)
    assert ([f.id for f in files], more) == (["file-0"], False)
    with pytest.raises(KeyError):
        store.list_files("a", purpose="", after="file-1", limit=2, descending=True)
    assert store.file("b", "file-0") is None


def test_what_a_death_leaves_is_swept_and_what_is_written_is_not(store: BatchStore) -> None:
    whole = put(store)
    (store.files / f"file-old{PART}").write_bytes(b"half")
    (store.files / "file-unknown").write_bytes(b"renamed, and no row")
    writing = PartFile(store.path("file-new"))
    assert store.sweep() == [f"file-old{PART}", "file-unknown"]
    writing.keep()
    assert store.sweep() == [], "its row is on its way"
    writing.close()
    assert store.sweep() == ["file-new"]
    assert store.path(whole.id).exists()


def test_one_process_runs_batches(store: BatchStore) -> None:
    first, second = FolderLock(store.folder, RUNNER), FolderLock(store.folder, RUNNER)
    assert [first.claim(), first.claim(), second.claim()] == [True, True, False]
    first.release()
    first.release()
    assert second.claim()
    second.release()


def test_files_are_written_again_after_a_death_in_the_middle(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, data=b"{}\n{}\n")
    store.add_batch(made())
    store.begin("batch_1", 2, [], 11)
    store.add_results([result(0), result(1)])
    batch = store.finalize("batch_1", BatchStatus.COMPLETED, 12)
    assert batch is not None

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(store, "finish", die)
        with pytest.raises(SystemExit):
            write_files(store, batch, 13)
    assert len(store.sweep()) == 1, "the output file had no row"
    write_files(store, batch, 14)
    ended = store.batch("batch_1")
    assert ended is not None
    assert store.path(ended.output_file).read_bytes() == b"0 done\n1 done\n"


@claim("A full disk loses no answer, and the batch goes on when there is room", of="offline")
def test_a_full_disk_leaves_what_was_there(store: BatchStore) -> None:
    put(store, data=b"{}\n{}\n")
    store.add_batch(made())
    store.begin("batch_1", 2, [], 11)
    store.add_results([result(0)])
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    big = ResultRecord(batch="batch_1", line=1, failed=False, text=b"x" * 100_000)
    with pytest.raises(OSError, match=r"the store cannot be written .*full"):
        store.add_results([big])
    batch = store.batch("batch_1")
    assert batch is not None
    assert (batch.completed, store.answered("batch_1").keys()) == (1, {0})
    store._database.execute("PRAGMA max_page_count = 100000")
    assert store.add_results([big]) == 1


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file cannot be made \(.*\); name another folder in batch_dir"):
        BatchStore(tmp_path / "file")
    other = tmp_path / "newer"
    (other / "files").mkdir(parents=True)
    connection = sqlite3.connect(other / DATABASE)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match="is of format 9, this version writes 1"):
        BatchStore(other)
    (other / DATABASE).write_bytes(b"no database at all, whatever it is" * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        BatchStore(other)


ANSWERING = """
import sys
from pathlib import Path
from blockwright.api.batches.records import ResultRecord
from blockwright.api.batches.store import BatchStore
store = BatchStore(Path(sys.argv[1]))
done = store.answered("batch_1")
for line in range(10_000):
    if line not in done:
        text = f"{line} {'x' * (line % 5000)}\\n".encode()
        store.add_results([ResultRecord(batch="batch_1", line=line, failed=line % 7 == 0, text=text, output_tokens=1)])
        print(line, flush=True)
"""


@claim(
    "A batch survives kill -9 of worker, gateway and head; no answer is lost, doubled or computed again",
    of="offline",
    headline=True,
)
def test_kill_9_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A process that answers line after line is killed again and again, at moments that nobody chooses."""
    folder = tmp_path / "batches"
    store = BatchStore(folder)
    put(store)
    store.add_batch(made())
    seen: list[int] = []
    for life in range(5):
        command = [sys.executable, "-c", ANSWERING, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(3 + 7 * life):
                seen.append(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            seen += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        kept = store.answered("batch_1")
        assert sorted(seen) == seen
        assert len(set(seen)) == len(seen), "what was stored is not computed again"
        assert set(seen) <= kept.keys(), "what was acknowledged is there"
        assert len(kept) <= len(seen) + life + 1, "and at most what was on its way besides"
        batch = store.batch("batch_1")
        assert batch is not None
        assert (batch.completed + batch.failed, batch.output_tokens) == (len(kept), len(kept))
    assert store._database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    store.close()

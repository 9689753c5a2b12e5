"""The files of batches reach the disk before their names do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockwright.api.batches.folder import PART, PartFile


def test_a_file_is_forced_to_the_disk_then_named_then_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its bytes: what a buffer still holds would be lost under a name that is there."""
    calls: list[tuple[str, str, int]] = []
    rename, fsync = os.rename, os.fsync

    def synced(descriptor: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        calls.append(("rename", str(target), source.stat().st_size))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    path = tmp_path / "file-a"
    part = PartFile(path)
    part.file.write(b"abc\n")
    assert part.keep() == 4
    part.close()
    *file, folder = calls
    assert file == [("fsync", f"{path}{PART}", 4), ("rename", str(path), 4)]
    assert folder[:2] == ("fsync", str(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file-a"]


def test_a_file_that_is_not_kept_is_never_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", lambda source, target: pytest.fail("it is not whole"))
    part = PartFile(tmp_path / "file-a")
    part.file.write(b"abc\n")
    part.close()
    part.close()
    assert [*tmp_path.iterdir()] == []

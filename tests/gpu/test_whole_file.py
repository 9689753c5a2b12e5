"""A file that is written anew is the old one or the new one, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockwright.gpu.whole_file import write_whole


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append(("rename", target.name))
        assert source.read_bytes() == b"new"
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_whole(path, b"new", 0o600)
    assert done == [("sync", f"file.{os.getpid()}.tmp"), ("rename", "file"), ("sync", tmp_path.name)]
    assert (path.read_bytes(), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (b"new", 0o600, ["file"])


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, name, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])

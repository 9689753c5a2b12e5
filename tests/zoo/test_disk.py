"""The order of what reaches the disk, and writers that take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.waiting import PATIENCE
from blockwright.tests.zoo.models import doubled, files, variant
from blockwright.zoo.add import add
from blockwright.zoo.errors import ZooError
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Path]


def test_nothing_is_seen_before_it_is_on_the_disk(checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file was forced there before its name, and every name before the application that needs it."""
    synced: set[str] = set()  # files and folders as they are now
    renamed: list[str] = []
    rename, open_ = os.rename, os.open

    def opened(path: str, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            synced.discard(str(path))
            synced.discard(str(Path(path).parent))
        return open_(path, flags, *more)

    def renames(source: Path, target: Path) -> None:
        assert str(source) in synced
        if target.parent.name == "chains":
            folders = {str(path) for path in (zoo / "tensors").iterdir()} | {str(zoo / "components"), str(zoo / "files")}
            assert folders | {str(source)} <= synced, folders - synced
        synced.discard(str(target.parent))
        renamed.append(str(target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "rename", renames)
    zoo = tmp_path / "zoo"
    add(zoo, str(checkpoint("llama-tied", num_hidden_layers=1)), "base")
    assert str(zoo) in synced
    assert renamed[-1] == str(zoo / "chains" / "base")
    assert str(zoo / "chains") in synced
    assert len(renamed) == len([name for name in files(zoo) if not name.startswith("chains/")]) + 1
    synced.clear()  # what another writer left may be in memory alone
    add(zoo, str(checkpoint("llama-tied", num_hidden_layers=1)), "same")
    assert renamed[-1] == str(zoo / "chains" / "same")


def test_two_writers_take_turns(checkpoint: Make, tmp_path: Path) -> None:
    """The second waits, says so, and then finds what the first has stored."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    tuned = variant(base, tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    holds, waits = threading.Event(), threading.Event()
    stored = {}

    def step(word: str) -> None:
        holds.set()
        assert waits.wait(PATIENCE)

    first = threading.Thread(target=lambda: stored.update(base=add(zoo, str(base), "base", step=step)))
    first.start()
    assert holds.wait(PATIENCE)
    stored["tuned"] = add(zoo, str(tuned), "tuned", waiting=waits.set)
    first.join()
    assert (stored["base"].shared, stored["tuned"].tensors, stored["tuned"].base) == (0.0, 1, "base")
    assert Zoo(zoo).names() == ["base", "tuned"]
    assert not verify(zoo).faults


def test_garbage_is_not_what_is_being_added(checkpoint: Make, tmp_path: Path) -> None:
    """gc waits for a writer whose tensors nobody names yet."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    tuned = variant(base, tmp_path / "tuned", {"up_proj": doubled})
    stored, waits = threading.Event(), threading.Event()

    def step(word: str) -> None:
        if word == "symlink":
            stored.set()
            assert waits.wait(PATIENCE)

    writer = threading.Thread(target=add, args=(zoo, str(tuned), "tuned"), kwargs={"step": step})
    writer.start()
    assert stored.wait(PATIENCE)
    assert gc(zoo, waiting=waits.set).files == 0
    writer.join()
    assert not verify(zoo).faults


def test_writers_and_readers_in_processes(checkpoint: Make, tmp_path: Path) -> None:
    """Four at once, each adding, listing, removing and collecting: what is left at the end is whole."""
    base, zoo = checkpoint("llama-tied", num_hidden_layers=1), tmp_path / "zoo"
    add(zoo, str(base), "base")
    alone = files(zoo)
    sources = [variant(base, tmp_path / f"m{i}", {"up_proj": lambda t, i=i: t + i}) for i in range(1, 5)]  # type: ignore[misc]
    commands = [
        [sys.executable, "-m", "blockwright.tests.zoo.crowd", zoo, source, f"m{i}"] for i, source in enumerate(sources)
    ]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [(one.communicate()[1], one.returncode) for one in crowd] == [("", 0)] * 4
    assert Zoo(zoo).names() == ["base", "m0", "m1", "m2", "m3"]
    assert not verify(zoo).faults
    for i in range(4):
        remove(zoo, f"m{i}")
    gc(zoo)
    assert files(zoo) == alone


@pytest.mark.parametrize("command", [remove, gc])
def test_a_folder_that_is_no_zoo_keeps_its_files(tmp_path: Path, command: Callable[..., object]) -> None:
    (tmp_path / "tmp" / "inner").mkdir(parents=True)
    files = [tmp_path / "tmp" / "precious", tmp_path / "tmp" / "inner" / "too"]
    for path in files:
        path.write_text("x")
    with pytest.raises(ZooError):
        command(tmp_path, *(["app"] if command is remove else []))
    assert all(path.is_file() for path in files)

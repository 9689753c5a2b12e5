"""Kills a writer of a zoo at its steps in turn, and looks at what is left: ``killed.py EVERY BEFORE WORK WORDS...``.

EVERY is 1 for each step, 3 for every third. BEFORE is a zoo (or does not exist) that each round begins with a copy of, in
folder WORK; WORDS are what the writer does: ``add SOURCE NAME [BASE]``, ``remove NAME`` or ``gc``. Not a test: a process of
its own, light enough to be forked hundreds of times. Prints the first step that was not taken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from blockwright.zoo.add import add
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.source import open_source
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

Step = Callable[[str], None]


def act(zoo: Path, words: Sequence[str], step: Step | None = None) -> None:
    if words[0] == "add":
        add(zoo, words[1], words[2], base=words[3] if words[3:] else "", step=step)
    elif words[0] == "remove":
        remove(zoo, words[1], step=step)
    else:
        gc(zoo, step=step)


def content(zoo: Path) -> dict[str, bytes]:
    """What lies there but for the lock, which says nothing, and where it was copied from, which says too much."""
    return {
        str(path.relative_to(zoo)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in zoo.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.name != "lock"
    }


def dies(zoo: Path, words: Sequence[str], at: int) -> bool:
    """Whether a process that does this was killed before its step ``at``."""
    pid = os.fork()
    if pid == 0:
        done = 0

        def step(word: str) -> None:
            nonlocal done
            if done == at:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

        try:
            act(zoo, words, step)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def look(zoo: Path, before: dict[str, bytes], applications: Sequence[str]) -> None:
    """What a killed writer left: everything that is named is there and right, and whoever was there still is."""
    if not (zoo / "zoo.json").exists():
        assert not applications
        return
    assert not verify(zoo).faults
    names = Zoo(zoo).names()
    assert set(applications) <= set(names), (applications, names)
    for name in names:
        assert len(open_source(zoo / "chains" / name))
    now = content(zoo)
    kept = {path for name in applications for path in before if path.startswith(f"chains/{name}/")}
    assert all(now[path] == before[path] for path in kept)


def main(every: int, before: Path, work: Path, words: Sequence[str]) -> int:
    # what is killed loses nothing that it gave to the system; what a power cut does is no matter of processes
    os.fsync = lambda fd: None
    if before.exists():
        shutil.copytree(before, work, symlinks=True)
    old = content(work)
    survivors = [name for name in (Zoo(work).names() if before.exists() else []) if name not in words[1:3]]
    act(work, words)
    done = content(work)
    gc(work)
    collected = content(work)
    at = 0
    while True:
        shutil.rmtree(work)
        if before.exists():
            shutil.copytree(before, work, symlinks=True)
        if not dies(work, words, at):
            return at
        look(work, old, survivors)
        if words[0] != "remove" or words[1] in Zoo(work).names():
            act(work, words)  # whoever was killed is started again
        assert content(work).items() >= done.items()
        gc(work)
        assert content(work) == collected
        at += every


if __name__ == "__main__":
    print(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))

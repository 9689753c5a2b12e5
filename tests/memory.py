"""Memory of processes as the kernel counts it, of what a test is about alone: nothing else that a process does shows."""

from __future__ import annotations

import re
from mmap import PAGESIZE
from pathlib import Path

MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*\n(?:[A-Z]\w+:.*\n)+", re.MULTILINE)


def arena_bytes(pid: int | str = "self", within: range | None = None) -> int:
    """Resident memory of a process's arenas (gpu/memory.py), or of a range of addresses.

    Arenas are the mappings that do not take huge pages ("nh"). Only stacks of threads ask for that, too; a page that nobody
    may touch (less than a chunk) lies before each.
    """
    found = guard = 0
    for mapping in MAPPING.finditer(Path(f"/proc/{pid}/smaps").read_text()):
        fields = dict(line.split(":", 1) for line in mapping[0].splitlines()[1:])
        first, last = int(mapping[1], 16), int(mapping[2], 16)
        if (first in within and last - 1 in within) if within else ("nh" in fields["VmFlags"].split() and first != guard):
            found += 1024 * int(fields["Rss"].split()[0])
        guard = last if last - first == PAGESIZE else 0
    return found


def begin_peak() -> int:
    """Resident memory of this process now; from now on ``peak`` is of what follows."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most resident memory since ``begin_peak``."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

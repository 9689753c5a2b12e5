"""What this machine gives the server: free memory and cores, with the limits of its control groups.

Reads files only; decides nothing. Paths are arguments, so that tests bring their own.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of version 1; a quota of -1 is none


def free_memory(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Bytes that can be taken without swapping or hitting a control group's limit."""
    free = int(psutil.virtual_memory().available)
    for folder in _folders(cgroup, own, "memory"):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None:
            limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free = min(free, max(limit - used + _cached(folder), 0))
    return free


def address_space() -> int | None:
    """Bytes that a process may map (``ulimit -v``, or ``-d``, which counts what is reserved, too); None: no limit."""
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def cores(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Cores that this process may keep busy, at least 1: those of its affinity, or whole ones of a control group's quota.

    Of 1.5 cores one: a second thread would use up the quota of a period in three quarters of it, and then nobody runs.
    """
    count = len(os.sched_getaffinity(0))
    for folder in _folders(cgroup, own, "cpu"):
        text = _read(folder / "cpu.max").split() or [_read(folder / name).strip() for name in _QUOTA]
        if len(text) == 2 and text[0].isdigit() and text[1].isdigit():
            count = min(count, int(text[0]) // max(int(text[1]), 1))
    return max(count, 1)


def _folders(cgroup: Path, own: Path, controller: str) -> Iterator[Path]:
    """The group of this process and all above it; for version 1 those of the controller."""
    for line in _read(own).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            names = [controllers, controller]  # mounted under all that share a hierarchy, or under a link for each
            mounted = next((cgroup / name for name in names if (cgroup / name).is_dir()), cgroup / controller)
            root = cgroup if number == "0" else mounted
            folder = root / path.lstrip("/")
            while True:
                yield folder
                if folder in (root, folder.parent):
                    break
                folder = folder.parent


def _cached(folder: Path) -> int:
    """Bytes of file cache counted as used that the kernel gives up at once."""
    for line in _read(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Machine resources for the server: free memory and cores, within the limits of its control groups.

Only reads files; decides nothing. Paths are arguments, so that tests can pass their own.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # in version 1; a quota of -1 means none


def free_memory(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Return the bytes that can be allocated without swapping or hitting a control group's limit."""
    free = int(psutil.virtual_memory().available)
    for folder in _folders(cgroup, own, "memory"):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None:
            limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free = min(free, max(limit - used + _cached(folder), 0))
    return free


def address_space() -> int | None:
    """Return the bytes that a process may map, or None for no limit.

    The limits are ``ulimit -v``, and ``-d``, which counts reserved ranges too.
    """
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def cores(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Return the cores that this process may keep busy, at least 1.

    They are the cores of its affinity, or the whole ones of a control group's quota. A quota of 1.5 cores counts as one: a
    second thread would use up a period's quota in three quarters of it, and then no thread would run.
    """
    count = len(os.sched_getaffinity(0))
    for folder in _folders(cgroup, own, "cpu"):
        text = _read(folder / "cpu.max").split() or [_read(folder / name).strip() for name in _QUOTA]
        if len(text) == 2 and text[0].isdigit() and text[1].isdigit():
            count = min(count, int(text[0]) // max(int(text[1]), 1))
    return max(count, 1)


def _folders(cgroup: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield this process's group and all groups above it; in version 1, the controller's."""
    for line in _read(own).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            # mounted under the names of all controllers in a hierarchy, or under a link for each
            names = [controllers, controller]
            mounted = next((cgroup / name for name in names if (cgroup / name).is_dir()), cgroup / controller)
            root = cgroup if number == "0" else mounted
            folder = root / path.lstrip("/")
            while True:
                yield folder
                if folder in (root, folder.parent):
                    break
                folder = folder.parent


def _cached(folder: Path) -> int:
    """Return the bytes of file cache that count as used but that the kernel gives up at once."""
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

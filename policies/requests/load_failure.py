"""Load failure: the reason for clients why an application could not be loaded on any worker it belongs on.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

# an absolute path, up to its end in a sentence; its folders are not for clients
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\":;,()]+/)*(?=[^\s/'\":;,()])")
_QUOTED = re.compile(r"'/(?:[^']*/)?([^'/]+)/?'")  # the same between quotes, where it may have spaces


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A load failure.

    number: counts all failures of the cluster, so that none is taken as new twice. final: it is not retried at the next
    request.
    """

    application: str
    number: int
    why: str
    final: bool = False


def without_folders(message: str, checkpoints: Iterable[str]) -> str:
    """Return a worker's sentence without the server's folders, for clients who may not know where it keeps its files.

    Of each path only the last name stays, or the part below the checkpoint's folder. ``checkpoints``: paths that may occur
    in it, even with spaces.
    """
    for path in sorted((path.rstrip("/") for path in checkpoints if path.startswith("/")), key=len, reverse=True):
        message = message.replace(path, path.rpartition("/")[2])
    return _FOLDERS.sub("", _QUOTED.sub(r"'\1'", message))


def blocked(routes: Iterable[Iterable[str]], refusing: Container[str]) -> bool:
    """Return whether an application can load nowhere. routes: the workers of each. refusing: workers that cannot load it."""
    return all(any(worker in refusing for worker in route) for route in routes)


def reasons(refusals: Mapping[str, str]) -> str:
    """Return the refusals of all workers in one sentence. ``refusals``: the reason of each worker."""
    workers: dict[str, list[str]] = {}
    for worker, why in refusals.items():
        workers.setdefault(why, []).append(worker)
    return "; ".join(f"worker{'s' * (len(those) > 1)} {', '.join(those)}: {why}" for why, those in workers.items())

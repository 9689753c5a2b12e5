"""Load failure: why an application could not be loaded on any worker that it belongs on, as clients are told. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

# an absolute path, up to what ends it in a sentence; its folders are the server's own business
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\":;,()]+/)*(?=[^\s/'\":;,()])")


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """``number``: of all failures of the cluster, so that the same one is not taken for news twice. ``final``: it is not
    tried again when the next request comes."""

    application: str
    number: int
    why: str
    final: bool = False


def without_folders(message: str, checkpoints: Iterable[str]) -> str:
    """A worker's sentence for those who may not know where the server keeps its files: of each path only the last name, or
    what is below the checkpoint's folder. ``checkpoints``: paths that may be in it, with spaces, too."""
    for path in sorted((path.rstrip("/") for path in checkpoints if path.startswith("/")), key=len, reverse=True):
        message = message.replace(path, path.rpartition("/")[2])
    return _FOLDERS.sub("", message)


def blocked(routes: Iterable[Iterable[str]], refusing: Container[str]) -> bool:
    """Whether an application can come nowhere. ``routes``: the workers of each; ``refusing``: those that cannot load it."""
    return all(any(worker in refusing for worker in route) for route in routes)


def reasons(refusals: Mapping[str, str]) -> str:
    """Why it cannot, in one sentence. ``refusals``: what each worker said."""
    workers: dict[str, list[str]] = {}
    for worker, why in refusals.items():
        workers.setdefault(why, []).append(worker)
    return "; ".join(f"worker{'s' * (len(those) > 1)} {', '.join(those)}: {why}" for why, those in workers.items())

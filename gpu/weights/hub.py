"""Hub checkpoints: ``owner/name`` or ``owner/name@revision``, fetched by the hub's client into its cache.

config.json comes first and is checked, and the size is compared with the free disk and the memory, so that nothing large is
fetched that cannot be served. Then the size and, during the fetch, the progress are reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path

from ...policies.binary_size import binary_size
from ..errors import CheckpointError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
HUB_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#:]+)")  # as a browser shows it
_WEIGHTS = ("model*.safetensors", "adapter*.safetensors")
_FILES = ["*.json", *_WEIGHTS, "tokenizer*", "*.jinja"]
TELL_EVERY = 5.0  # seconds
log = logging.getLogger(__name__)


def _log(sentence: str) -> None:
    log.warning("%s", sentence)


# Receives the progress of fetches that begin in this context; called in any thread. The default is the log.
PROGRESS: ContextVar[Callable[[str], None]] = ContextVar("progress", default=_log)


def fetch(source: str, judge: Callable[[Path], None]) -> Path:
    """Return the folder in the cache, fetching what is missing. Raises CheckpointError.

    ``judge`` raises CheckpointError for a config.json that cannot be served.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    name, _, revision = source.partition("@")
    try:
        try:
            config: str | None = hf_hub_download(name, "config.json", revision=revision or None)
        except EntryNotFoundError:  # an adapter has none
            config = None
        if config is not None:
            judge(Path(config))
        size = _size(name, revision)
        _check_room(source, size, _cached(name), config)
        if size:
            PROGRESS.get()(
                f"{source} has {binary_size(size)} of weights, which need as much memory; fetching what the cache lacks"
            )
        with _progress(source, _cached(name), size, PROGRESS.get()):
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=_FILES))
    except CheckpointError:
        raise
    except Exception as error:  # the client raises a dozen kinds: network, permission, unknown name, disk
        kind, reason = _why(error)
        raise CheckpointError(
            f"{source} is not a folder here and could not be fetched from the hub ({kind}: {reason}); "
            "check the name and the network, or name a local folder"
        ) from None


def _check_room(source: str, size: int, folder: Path, config: str | None) -> None:
    """Raise CheckpointError if the disk or this machine's memory is too small for ``size`` bytes of weights.

    ``size`` is 0 if it is not known. ``folder`` is the cache's, which may hold a part. ``config`` is the path of
    config.json, if there is one. float32 counts half, since it may be served as bfloat16.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    free, lacks = shutil.disk_usage(there).free, size - _held(folder)
    if lacks > free:
        raise CheckpointError(
            f"{source} has {binary_size(size)} of weights, of which {binary_size(lacks)} are to be fetched, and the disk of "
            f"{there} has {binary_size(free)} free; free some, or name a folder on another disk in HF_HOME"
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (needs := size // 2 if _is_float32(config) else size) > memory:
        raise CheckpointError(
            f"{source} has {binary_size(size)} of weights, which need {binary_size(needs)} of memory, and this machine has "
            f"{binary_size(memory)}; choose a smaller model, or a machine with more memory"
        )


def _is_float32(config: str | None) -> bool:
    """Return whether a config.json names float32 as the type of the weights. Adapters, which have none, are small."""
    if config is None:
        return True
    report = json.loads(Path(config).read_text())
    return isinstance(report, dict) and (report.get("dtype") or report.get("torch_dtype") or "float32") == "float32"


def _why(error: Exception) -> tuple[str, str]:
    """Return the failure in two words and in a sentence; the client's own sentence for unusual ones."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    usual = (
        (LocalEntryNotFoundError, "no answer", "the hub cannot be reached, and the cache lacks it"),
        (GatedRepoError, "gated", "accept its terms on its page, and give a token of that account in HF_TOKEN"),
        (RepositoryNotFoundError, "not found", "the hub has none of that name, or it is private and HF_TOKEN has no access"),
        (RevisionNotFoundError, "not found", "it has no such revision"),
    )
    for kind, short, sentence in usual:
        if isinstance(error, kind):
            return short, sentence
    return type(error).__name__, " ".join(str(error).split())[:200]


def _size(name: str, revision: str) -> int:
    """Return the bytes of the weights; 0 if the hub does not say, as without a network."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(name, revision=revision or None, files_metadata=True).siblings or []
    except Exception:  # files in the cache are served without the size
        return 0
    return sum(file.size or 0 for file in files if any(fnmatch(file.rfilename, kind) for kind in _WEIGHTS))


def _cached(name: str) -> Path:
    """Return the folder where the client writes fetched files."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"


@contextlib.contextmanager
def _progress(source: str, folder: Path, size: int, report: Callable[[str], None]) -> Iterator[None]:
    """Run a thread that reports how many of ``size`` bytes have come, whenever there are more.

    Nothing is reported if everything was in the cache.
    """
    over, there = threading.Event(), _held(folder)

    def follow() -> None:
        last = there
        while not over.wait(TELL_EVERY):
            if (now := _held(folder)) > last:
                last = now
                of = f" of {binary_size(size)} ({min(99, 100 * now // size)} %)" if size else ""
                report(f"{source}: {binary_size(now)}{of} fetched")

    thread = threading.Thread(target=follow, name="hub-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if (came := _held(folder) - there) > 0:
        report(f"{source} is fetched: {binary_size(came)} came")


def _held(folder: Path) -> int:
    """Return the bytes of the folder's files, including incomplete ones."""
    total = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            with contextlib.suppress(OSError):  # the file has just been renamed
                total += file.stat().st_size
    return total

"""Mirrors: what a head needs of an application in an origin, in a folder of this machine: everything but the tensors.

A mirror is a zoo with one application and a mark that says so. Its folder is named by the content of the application's
document, so that it never changes and servers may share it; all else in it is compared with its hash, when it comes and
whenever it is used again. Reads block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..gpu.model.deltas import DeltaConfig
from .by_hash import read_by_hash
from .disk import Disk, is_mirror, writing
from .documents import decode, encode
from .errors import OriginError, ZooError
from .layout import CHAIN, MIRROR_OF, Layout, check_name
from .origin import RELATIVE, Origin
from .records import StoredChain, chain_from, read_component

AT_ONCE = 8  # files that are asked for at a time
Judge = Callable[[bytes], object]  # raises OriginError for bytes that are not what was asked for


def mirrored(origin: Origin, name: str, root: Path) -> Path:
    """Return the folder of an origin's application in its mirror below ``root``, which holds what ``open_source`` reads.

    Only the application's document is asked for if the mirror is whole. Raises ZooError: OriginError for what the origin
    does not give, StorageError if the mirror cannot be written.
    """
    check_name(name)
    where = RELATIVE.chain(name)
    document = origin.read(where / CHAIN, _uncounted)
    chain = chain_from(decode(document, where / CHAIN), where)
    with writing(root / _digest(document)[:32], create=True) as disk:
        layout = disk.layout
        if not is_mirror(layout):
            disk.write(layout.mark, [encode({"hash": "blake2b-256", MIRROR_OF: origin.where})])
        _fetch(disk, origin, dict(_shared(chain)))
        _fetch(disk, origin, dict(_deltas(chain, layout)))
        if not layout.chain(name).is_dir():
            disk.stage_chain(document, {file: layout.file(hash) for file, hash in chain.files.items()})
            disk.commit_chain(name)
    return layout.chain(name)


def _shared(chain: StoredChain) -> Iterator[tuple[Path, Judge]]:
    """Yield the files that a chain names, but for deltas, each with what judges it."""
    for id in chain.parts:
        yield RELATIVE.component(id), partial(read_by_hash, id=bytes.fromhex(id))
    for hash in chain.files.values():
        yield RELATIVE.file(hash), partial(_judge_file, hash)


def _deltas(chain: StoredChain, layout: Layout) -> Iterator[tuple[Path, Judge]]:
    """Yield the documents of deltas, which are judged by the configurations of their components."""
    for id, delta in zip(chain.components, chain.deltas, strict=False):
        if delta:
            base = read_component(layout.component(id))
            assert not isinstance(base.config, DeltaConfig), "its identity is a component's"
            yield RELATIVE.delta(delta), partial(read_by_hash, id=bytes.fromhex(delta), base=base.config)


def _judge_file(hash: str, raw: bytes) -> None:
    if _digest(raw) != hash:
        raise OriginError(f"{RELATIVE.file(hash)} is not what its name says: it is {_digest(raw)}")


def _fetch(disk: Disk, origin: Origin, files: Mapping[Path, Judge]) -> None:
    """Fetch the files that are not in the mirror as they should be."""
    missing = [path for path, judge in files.items() if not _is_here(disk.layout.root / path, judge)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for path, raw in zip(missing, threads.map(lambda path: origin.read(path, _uncounted), missing), strict=True):
            files[path](raw)
            disk.write(disk.layout.root / path, [raw])


def _is_here(path: Path, judge: Judge) -> bool:
    try:
        judge(path.read_bytes())
    except (OSError, ZooError):
        return False
    return True


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=32).hexdigest()


def _uncounted(nbytes: int) -> None:
    pass

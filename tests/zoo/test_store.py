"""Stores: what comes is kept by its hash, in the store or, without room there, in memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.gpu.model.config import TensorRef
from blockwright.gpu.weights.identity import begin_hash, hash_tensor
from blockwright.tests.claims import claim
from blockwright.tests.zoo.models import files
from blockwright.zoo import store as module
from blockwright.zoo.add import add
from blockwright.zoo.errors import OriginError, ZooError
from blockwright.zoo.records import StoredTensor
from blockwright.zoo.store import ArrivingTensor, Store, is_in_memory
from blockwright.zoo.verify import verify

SHAPE = (40, 100)
CONTENT = bytes(SHAPE[0] * SHAPE[1] * 4)


def tensor(content: bytes = CONTENT, shape: tuple[int, ...] = SHAPE) -> StoredTensor:
    digest = begin_hash("F32", shape)
    digest.update(content)
    return StoredTensor(digest.hexdigest(), "F32", shape)


def arrived(store: Store | None, one: StoredTensor, content: bytes = CONTENT) -> tuple[ArrivingTensor, TensorRef]:
    arriving = ArrivingTensor(one, store)
    for first in range(0, len(content), 3000):
        arriving.append(content[first : first + 3000])
    ref = arriving.finish()
    assert ref is not None
    return arriving, ref


def test_what_came_is_found_by_its_hash_also_in_another_life(tmp_path: Path) -> None:
    store, one = Store.open(tmp_path / "store"), tensor()
    assert store.find(one) is None
    arriving, ref = arrived(store, one)
    arriving.close()
    again = Store.open(tmp_path / "store")
    assert again.find(one) == ref
    assert again.holds(ref)
    assert hash_tensor(ref).hex() == one.hash
    assert again.used == store.used > len(CONTENT)
    assert (verify(tmp_path / "store").faults, verify(tmp_path / "store").tensors) == ((), 1)
    again.discard(ref)
    assert again.find(one) is None


def test_what_differs_from_its_hash_is_kept_nowhere(tmp_path: Path) -> None:
    store, one = Store.open(tmp_path / "store"), tensor()
    empty = files(tmp_path / "store")
    arriving = ArrivingTensor(one, store)
    arriving.append(CONTENT[:-1] + b"?")
    assert arriving.whole
    assert arriving.finish() is None
    assert arriving.filled == 0, "it begins anew"
    arriving.append(CONTENT)
    assert arriving.finish() is not None
    half = ArrivingTensor(tensor(b"\1" * len(CONTENT)), store)
    half.append(CONTENT[:10])
    with pytest.raises(OriginError, match="and more came"):
        half.append(CONTENT)
    half.close()
    with pytest.raises(OriginError, match="not needed any more"):
        half.append(CONTENT[:10])
    assert len(files(tmp_path / "store")) == len(empty) + 1


@claim("A full store is said and does without", of="serving")
def test_beyond_its_size_a_store_keeps_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(tmp_path / "store", 20_000)
    one, two = tensor(), tensor(b"\1" * len(CONTENT))
    arrived(store, one)
    assert store.full == ""
    arriving, ref = arrived(store, two, b"\1" * len(CONTENT))
    assert is_in_memory(ref)
    assert arriving.in_memory == len(CONTENT)
    assert hash_tensor(ref).hex() == two.hash
    assert store.find(two) is None
    assert store.full == (
        f"store {tmp_path / 'store'} is full (15.8 KiB of its 19.5 KiB): what does not fit is not kept, and is fetched "
        "again when it is needed; give it more (--set store_size=...), or empty it with 'blockwright zoo gc'"
    )
    assert caplog.messages == [store.full], "it is said once"
    arriving.close()
    assert arriving.in_memory == 0


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_disk_that_fills_up_in_the_middle_costs_nothing_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    store, one = Store.open(tmp_path / "store"), tensor()
    write, count = os.pwrite, [0]

    def full(fd: int, piece: bytes, offset: int) -> int:
        count[0] += 1
        if count[0] == 1 + at:
            write(fd, piece[:5], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, piece, offset)

    monkeypatch.setattr(os, "pwrite", full)
    arriving, ref = arrived(store, one)
    assert is_in_memory(ref)
    assert hash_tensor(ref).hex() == one.hash
    assert store.full == (
        f"store {tmp_path / 'store'} keeps nothing more (No space left on device): what comes is fetched again when needed; "
        "free some room there, then restart the worker"
    )
    assert not list((tmp_path / "store" / "tmp").iterdir())
    arriving.close()
    store.keep_document(Path("components/x.json"), b"1")
    assert store.document(Path("components/x.json")) is None


def test_a_name_that_the_disk_refuses_leaves_the_tensor_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, one = Store.open(tmp_path / "store"), tensor()

    def refused(*names: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", refused)
    _, ref = arrived(store, one)
    assert is_in_memory(ref)
    assert hash_tensor(ref).hex() == one.hash
    assert "(Input/output error)" in store.full
    assert "check the folder" in store.full


def test_without_a_store_everything_lies_in_memory() -> None:
    arriving, ref = arrived(None, tensor())
    assert is_in_memory(ref)
    assert arriving.in_memory == len(CONTENT)
    arriving.close()


def test_two_workers_may_share_a_store(tmp_path: Path) -> None:
    first, second = Store.open(tmp_path / "store"), Store.open(tmp_path / "store")
    one = tensor()
    arriving = [ArrivingTensor(one, store) for store in (first, second)]
    third = Store.open(tmp_path / "store")
    for each in arriving:
        each.append(CONTENT)
    refs = {each.finish() for each in arriving}
    assert refs == {third.find(one)}, "a third one that starts deletes nothing that is being written"


def test_what_a_dead_worker_left_half_done_goes(tmp_path: Path) -> None:
    Store.open(tmp_path / "store")
    rest = tmp_path / "store" / "tmp" / f"{module.ARRIVING}-1-2-abc"
    rest.write_bytes(b"rest")
    Store.open(tmp_path / "store")
    assert not rest.exists()


def test_closing_waits_for_a_thread_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would write into the file that gets the number next."""
    arriving, write = ArrivingTensor(tensor(), Store.open(tmp_path / "store")), os.pwrite
    inside, go = threading.Event(), threading.Event()

    def waits(fd: int, piece: bytes, offset: int) -> int:
        inside.set()
        go.wait()
        return write(fd, piece, offset)

    monkeypatch.setattr(os, "pwrite", waits)
    writer = threading.Thread(target=arriving.append, args=(CONTENT,))
    writer.start()
    inside.wait()
    closer = threading.Thread(target=arriving.close)
    closer.start()
    assert arriving.filled == 0
    go.set()
    writer.join()
    closer.join()
    assert arriving.whole


@claim("A store that cannot be one is refused with the field, the value and the remedy", of="serving")
def test_what_can_be_no_store_is_refused(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    def refused(root: Path) -> str:
        with pytest.raises(ZooError) as error:
            Store.open(root, field="--store")
        return str(error.value)

    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file").startswith(f"--store is '{tmp_path / 'file'}', which can")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("")
    assert refused(tmp_path / "mine") == (
        f"--store is '{tmp_path / 'mine'}', which cannot be a store: {tmp_path / 'mine'} is not a zoo and holds other files "
        "(letter); name an empty or a new folder"
    )
    nowhere = Path("/proc/store")
    assert refused(nowhere).startswith("--store is '/proc/store', which cannot be")
    add(tmp_path / "zoo", str(checkpoint("llama")), "m")
    assert Store.open(tmp_path / "zoo").used > 0, "a zoo that is there is one already"

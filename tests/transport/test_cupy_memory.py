"""The memory of a card by CuPy, against a CuPy that records calls: which of CUDA's functions are called, with what."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.policies.cluster.chunk_order import Chunk, Traffic
from blockwright.transport.address import PeerId
from blockwright.transport.cupy_memory import CupyMemory, CupyNccl
from blockwright.transport.device_link import DeviceRing, RingReader, address_of
from blockwright.transport.device_memory import DeviceMemoryError


class CudaError(RuntimeError):
    """What CuPy raises."""


class FakeCupy:
    """One process's CuPy, with the calls that it got. ``fails``: the function of CUDA that fails."""

    def __init__(self, bus: str = "0000:17:00.0") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = ""
        self.current: int | None = None
        self._next = 0x1000
        self._bus = bus
        names = ("malloc", "free", "ipcGetMemHandle", "ipcOpenMemHandle", "ipcCloseMemHandle", "ipcGetEventHandle")
        names += ("ipcOpenEventHandle", "eventDestroy", "memcpyAsync", "eventRecord", "streamWaitEvent")
        names += ("hostRegister", "hostUnregister")
        functions = {name: self._function(name) for name in names}
        runtime = SimpleNamespace(CUDARuntimeError=CudaError, memcpyDefault=4, **functions)
        self.cuda = SimpleNamespace(
            runtime=runtime, Device=self._device, Stream=self._stream, Event=self._event, alloc_pinned_memory=bytearray
        )

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.fails == name:
                raise CudaError("cudaErrorMemoryAllocation: out of memory")
            self.calls.append((name, self.current, *arguments))
            if "Handle" in name and "Get" in name:
                return b"%064d" % arguments[0]
            self._next += 0x1000
            return self._next

        call.__name__ = name
        return call

    def _device(self, number: int) -> Any:
        if self.fails == "device":
            raise CudaError("cudaErrorInvalidDevice: invalid device ordinal")

        class Current:
            pci_bus_id = self._bus

            def __enter__(inner) -> None:
                self.current = number

            def __exit__(inner, *_: object) -> None:
                self.current = None

        return Current()

    def _stream(self, *, non_blocking: bool) -> Any:
        assert non_blocking, "it must not wait for the stream of the sweeps"
        self._next += 1
        return SimpleNamespace(
            ptr=self._next, launch_host_func=lambda call, argument: self.calls.append(("call", call, argument))
        )

    def _event(self, *, disable_timing: bool, interprocess: bool) -> Any:
        assert disable_timing, "CUDA refuses interprocess events that measure"
        assert interprocess
        self._next += 1
        return SimpleNamespace(ptr=self._next)


def names(cupy: FakeCupy) -> list[str]:
    return [call[0] for call in cupy.calls]


def test_a_chunk_crosses_by_handles_events_and_copies_that_nothing_waits_for() -> None:
    ours, theirs = FakeCupy(), FakeCupy()
    ring = DeviceRing(CupyMemory(0, ours), slots=2, slot_bytes=4096)
    assert names(ours) == ["malloc", "ipcGetEventHandle", "ipcGetEventHandle", "ipcGetMemHandle"]
    assert ours.calls[0] == ("malloc", 0, 8192)
    arrived: list[str] = []
    reader = RingReader(CupyMemory(0, theirs), ring.offer, lambda: arrived.append("it"))
    assert names(theirs) == ["ipcOpenEventHandle", "ipcOpenEventHandle", "ipcOpenMemHandle"]
    assert theirs.calls[2][2] == b"%064d" % ring._address
    ours.calls.clear()
    theirs.calls.clear()
    head = b"\x03head"
    one = b"1" * 100
    two = b"2" * 50
    frames = ring.lay(PeerId("b", 1), Chunk(Traffic.KV, 0, 0, 0, 150, True), [head, one, two])
    assert len(frames) == 2
    copies = [call for call in ours.calls if call[0] == "memcpyAsync"]
    assert [(call[2], call[4], call[5]) for call in copies] == [(ring._address, 100, 4), (ring._address + 100, 50, 4)]
    assert names(ours) == ["memcpyAsync", "memcpyAsync", "eventRecord"], "the event stands behind the copies"
    fetch = reader.fetch(0, (100, 50))
    assert names(theirs) == ["streamWaitEvent", "memcpyAsync", "call"], "and the reader's copy behind the event"
    assert not fetch.ended
    _, call, argument = theirs.calls[2]
    call(argument)
    assert fetch.ended
    assert arrived == ["it"]
    assert [len(frame) for frame in fetch.frames()] == [100, 50]
    theirs.calls.clear()
    reader.close()
    assert names(theirs) == ["call"], "memory is closed behind the copies, and not by CUDA's thread"
    theirs.calls[0][1](theirs.calls[0][2])
    assert reader.settled
    reader.give_back()
    assert names(theirs)[1:] == ["ipcCloseMemHandle", "eventDestroy", "eventDestroy"]


def test_another_card_is_refused() -> None:
    ring = DeviceRing(CupyMemory(0, FakeCupy("0000:17:00.0")), slots=1)
    with pytest.raises(DeviceMemoryError, match="were offered; this end uses 0000:65"):
        RingReader(CupyMemory(0, FakeCupy("0000:65:00.0")), ring.offer, lambda: None)


def test_allocated_memory_is_freed_and_opened_memory_closed() -> None:
    cupy = FakeCupy()
    memory = CupyMemory(1, cupy)
    memory.close(memory.allocate(4096))
    memory.close(memory.open(b"x" * 64, 4096))
    assert names(cupy) == ["malloc", "free", "ipcOpenMemHandle", "ipcCloseMemHandle"]
    assert {call[1] for call in cupy.calls} == {1}, "on the worker's card"


def test_errors_of_cuda_are_sentences() -> None:
    cupy = FakeCupy()
    cupy.fails = "malloc"
    with pytest.raises(DeviceMemoryError, match="malloc of CUDA failed: cudaErrorMemoryAllocation"):
        DeviceRing(CupyMemory(0, cupy))
    cupy.fails = "device"
    with pytest.raises(DeviceMemoryError, match="card 3 cannot be used: cudaErrorInvalidDevice"):
        CupyMemory(3, cupy)


def test_host_memory_is_pinned_for_the_card_and_a_peers_only_to_be_read() -> None:
    cupy = FakeCupy()
    memory = CupyMemory(1, cupy)
    memory.pin(0x7000, 4096, written=True)
    memory.pin(0x9000, 4096, written=False)
    memory.unpin(0x9000)
    assert cupy.calls == [
        ("hostRegister", 1, 0x7000, 4096, 1),
        ("hostRegister", 1, 0x9000, 4096, 1 | 8),
        ("hostUnregister", 1, 0x9000),
    ]
    cupy.fails = "hostRegister"
    with pytest.raises(DeviceMemoryError, match="hostRegister of CUDA failed"):
        memory.pin(0x7000, 4096, written=True)


class NcclError(RuntimeError):
    """The error that CuPy raises for NCCL."""


class FakeNcclLibrary:
    """``cupy.cuda.nccl``: records the calls of its communicators."""

    NCCL_UINT8 = 1
    NcclError = NcclError

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = ""

    def get_version(self) -> int:
        return 22800

    def get_unique_id(self) -> tuple[int, ...]:
        return tuple(range(-64, 64))

    def NcclCommunicator(self, count: int, identity: tuple[int, ...], rank: int) -> Any:
        self._call("init", count, identity, rank)
        calls = {name: partial(self._call, name) for name in ("send", "recv", "abort", "check_async_error")}
        return SimpleNamespace(**calls)

    def _call(self, name: str, *arguments: Any) -> None:
        if self.fails == name:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited")
        self.calls.append((name, *arguments))


def with_nccl() -> tuple[FakeCupy, FakeNcclLibrary]:
    cupy, nccl = FakeCupy(), FakeNcclLibrary()
    stream = cupy.cuda.Stream
    cupy.cuda.nccl = nccl
    cupy.cuda.alloc = lambda nbytes: SimpleNamespace(ptr=0x5000)

    def made(**more: Any) -> Any:
        found = stream(**more)
        found.synchronize = lambda: nccl.calls.append(("synchronize",))
        return found

    cupy.cuda.Stream = made
    return cupy, nccl


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pair_is_joined_with_its_first_message_and_used_on_the_queues_stream(rank: int) -> None:
    cupy, nccl = with_nccl()
    ours = CupyNccl(1, cupy)
    identity = ours.identity()
    assert (ours.version, len(identity)) == ("22800", 128)
    ends: list[Any] = []
    ours._join(identity, rank, ends.append)
    first = ("recv" if rank else "send", 0x5000, 1, 1, 1 - rank)
    assert nccl.calls[0] == ("init", 2, tuple(range(-64, 64)), rank), "the identity as NCCL gave it"
    assert [call[:5] for call in nccl.calls[1:]] == [first, ("synchronize",)]
    nccl.calls.clear()
    queue = CupyMemory(1, cupy).queue()
    (end,) = ends
    (end.receive if rank else end.send)(queue, 0x9000, 70)
    assert nccl.calls == [("recv" if rank else "send", 0x9000, 70, 1, 1 - rank, queue.number)]
    assert end.error() == ""
    nccl.fails = "check_async_error"
    assert end.error() == "NCCL failed: NCCL_ERROR_REMOTE_ERROR: remote process exited"
    end.abort()
    end.abort()
    assert [call[0] for call in nccl.calls].count("abort") == 1
    nccl.fails = "recv" if rank else "send"
    with pytest.raises(DeviceMemoryError, match="NCCL failed: NCCL_ERROR"):
        (end.receive if rank else end.send)(queue, 0x9000, 70)


def test_a_pair_that_cannot_be_joined_says_why() -> None:
    cupy, nccl = with_nccl()
    nccl.fails = "init"
    ends: list[Any] = []
    CupyNccl(0, cupy)._join(bytes(128), 0, ends.append)
    assert ends == ["NCCL failed: NCCL_ERROR_REMOTE_ERROR: remote process exited"]
    nccl.available = False
    with pytest.raises(DeviceMemoryError, match="CuPy has no NCCL here; install it"):
        CupyNccl(0, cupy)


def _two_cards() -> str:
    """Why NCCL cannot be tried here."""
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() >= 2 else "one card; NCCL needs two"
    except Exception as error:
        return f"no card: {type(error).__name__}"


@pytest.mark.skipif(bool(_two_cards()), reason=f"needs two cards: {_two_cards()}")
def test_bytes_cross_from_card_to_card() -> None:
    """The one test of NCCL itself: both ends in one process, each on its card."""
    ends: dict[int, Any] = {}
    both = [CupyNccl(0), CupyNccl(1)]
    identity, joined = both[0].identity(), threading.Barrier(3)

    def note(rank: int, end: Any) -> None:
        ends[rank] = end
        joined.wait(60)

    for rank, nccl in enumerate(both):
        nccl.join(identity, rank, partial(note, rank))
    joined.wait(60)
    memories = [CupyMemory(0), CupyMemory(1)]
    queues = [memory.queue() for memory in memories]
    places = [memory.allocate(1 << 20) for memory in memories]
    data, there = random.Random(1).randbytes(1 << 20), threading.Event()
    got = memories[1].host_memory(1 << 20)
    ends[1].receive(queues[1], places[1], 1 << 20)
    source, _ = address_of(data)
    queues[0].copy(places[0], source, 1 << 20)
    ends[0].send(queues[0], places[0], 1 << 20)
    target, _ = address_of(got)
    queues[1].copy(target, places[1], 1 << 20)
    queues[1].call(there.set)
    assert there.wait(60)
    assert bytes(got) == data
    for end in ends.values():
        end.abort()

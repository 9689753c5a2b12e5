"""The memory of a card by CuPy, against a CuPy that records calls: which of CUDA's functions are called, with what."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.policies.cluster.chunk_order import Chunk, Traffic
from blockwright.transport.address import PeerId
from blockwright.transport.cupy_memory import CupyMemory
from blockwright.transport.device_link import DeviceRing, RingReader
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

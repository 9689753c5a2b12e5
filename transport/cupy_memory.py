"""The memory of a card between processes, by CuPy: CUDA IPC handles of plain allocations and events, pinning, and NCCL.

CuPy is imported when memory is opened, and not before. A handle cannot be opened in the process that made it. What stands in
the pool of parameters and KV is never exported: CUDA refuses it, and chunks move.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from typing import Any

from .device_memory import CopyQueue, DeviceMemoryError, this_host
from .nccl_link import Joined

NO_NCCL = "CuPy has no NCCL here; install it (pip install nvidia-nccl-cu13), or let tensors go through the host"
PORTABLE, READ_ONLY = 1, 8  # flags of cudaHostRegister
MISSING = "links between processes of a card need CuPy, which is not installed; run: pip install 'blockwright[gpu]'"


class CupyQueue:
    """A stream of CuPy that waits for no other."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._runtime = cupy.cuda.runtime
        with cupy.cuda.Device(device):
            self._stream = cupy.cuda.Stream(non_blocking=True)

    @property
    def number(self) -> int:
        """The number of the stream for CUDA and for NCCL."""
        return int(self._stream.ptr)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._runtime.memcpyAsync(target, source, nbytes, self._runtime.memcpyDefault, self._stream.ptr)

    def record(self, event: int) -> None:
        self._runtime.eventRecord(event, self._stream.ptr)

    def wait(self, event: int) -> None:
        self._runtime.streamWaitEvent(self._stream.ptr, event)

    def call(self, ended: Callable[[], None]) -> None:
        self._stream.launch_host_func(_called, ended)

    def close(self, settled: Callable[[], None]) -> None:
        self.call(settled)


class CupyMemory:
    """``DeviceMemory`` of card ``device`` (see the module). ``cupy``: a test's, in place of the library."""

    form = "cuda-ipc"

    def __init__(self, device: int, cupy: Any = None) -> None:
        try:
            self._cupy = cupy or importlib.import_module("cupy")
        except ImportError:
            raise DeviceMemoryError(MISSING) from None
        self._runtime = self._cupy.cuda.runtime
        self._device = device
        self.host = this_host()
        try:
            self.card = str(self._cupy.cuda.Device(device).pci_bus_id)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceMemoryError(f"card {device} cannot be used: {error}") from error
        self._allocated: set[int] = set()
        self._events: dict[int, Any] = {}  # by its number for CUDA

    def allocate(self, nbytes: int) -> int:
        address = int(self._do(self._runtime.malloc, nbytes))
        self._allocated.add(address)
        return address

    def handle(self, address: int) -> bytes:
        return bytes(self._do(self._runtime.ipcGetMemHandle, address))

    def open(self, handle: bytes, nbytes: int) -> int:
        return int(self._do(self._runtime.ipcOpenMemHandle, handle))

    def close(self, address: int) -> None:
        if address in self._allocated:
            self._allocated.remove(address)
            self._do(self._runtime.free, address)
        else:
            self._do(self._runtime.ipcCloseMemHandle, address)

    def event(self) -> int:
        with self._cupy.cuda.Device(self._device):
            event = self._cupy.cuda.Event(disable_timing=True, interprocess=True)
        self._events[int(event.ptr)] = event
        return int(event.ptr)

    def event_handle(self, event: int) -> bytes:
        return bytes(self._do(self._runtime.ipcGetEventHandle, event))

    def open_event(self, handle: bytes) -> int:
        return int(self._do(self._runtime.ipcOpenEventHandle, handle))

    def close_event(self, event: int) -> None:
        self._do(self._runtime.eventDestroy, event)

    def queue(self) -> CupyQueue:
        return CupyQueue(self._cupy, self._device)

    def pin(self, address: int, nbytes: int, *, written: bool) -> None:
        self._do(self._runtime.hostRegister, address, nbytes, PORTABLE if written else PORTABLE | READ_ONLY)

    def unpin(self, address: int) -> None:
        self._do(self._runtime.hostUnregister, address)

    def host_memory(self, nbytes: int) -> memoryview:
        """Return pinned memory, to which a copy needs no wait of the host."""
        return memoryview(self._cupy.cuda.alloc_pinned_memory(nbytes)).cast("B")[:nbytes]

    def _do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self._cupy.cuda.Device(self._device):
                return call(*arguments)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceMemoryError(f"{getattr(call, '__name__', 'a call')} of CUDA failed: {error}") from error


class CupyCommunicator:
    """One end of a pair of NCCL's, joined. ``other``: the rank of the other end."""

    def __init__(self, nccl: Any, communicator: Any, other: int) -> None:
        self._nccl, self._communicator = nccl, communicator
        self._other = other
        self._aborted = False

    def send(self, queue: CopyQueue, address: int, nbytes: int) -> None:
        self._do(self._communicator.send, queue, address, nbytes)

    def receive(self, queue: CopyQueue, address: int, nbytes: int) -> None:
        self._do(self._communicator.recv, queue, address, nbytes)

    def error(self) -> str:
        try:
            self._communicator.check_async_error()
        except self._nccl.NcclError as error:
            return f"NCCL failed: {error}"
        return ""

    def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            with contextlib.suppress(self._nccl.NcclError):  # it ends what is queued even so
                self._communicator.abort()

    def _do(self, call: Callable[..., Any], queue: CopyQueue, address: int, nbytes: int) -> None:
        assert isinstance(queue, CupyQueue), "a queue of another device"
        try:
            call(address, nbytes, self._nccl.NCCL_UINT8, self._other, queue.number)
        except self._nccl.NcclError as error:
            raise DeviceMemoryError(f"NCCL failed: {error}") from error


class CupyNccl:
    """``Nccl`` of card ``device`` by CuPy, which waits for the other end in a thread of its own for each pair.

    The first message of a pair makes its connection, for which NCCL waits; so it is sent here. ``cupy``: a test's, in place
    of the library. Raises DeviceMemoryError without NCCL.
    """

    def __init__(self, device: int, cupy: Any = None) -> None:
        try:
            self._cupy = cupy or importlib.import_module("cupy")
            self._nccl = self._cupy.cuda.nccl if cupy else importlib.import_module("cupy.cuda.nccl")
            if not getattr(self._nccl, "available", True):
                raise ImportError
        except ImportError:
            raise DeviceMemoryError(NO_NCCL) from None
        self._device = device
        self.version = str(self._nccl.get_version())

    def identity(self) -> bytes:
        try:
            return bytes(number & 0xFF for number in self._nccl.get_unique_id())
        except self._nccl.NcclError as error:
            raise DeviceMemoryError(f"NCCL failed: {error}") from error

    def join(self, identity: bytes, rank: int, joined: Joined) -> None:
        threading.Thread(target=self._join, args=(identity, rank, joined), name="nccl", daemon=True).start()

    def _join(self, identity: bytes, rank: int, joined: Joined) -> None:
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self._device):
                signed = tuple(number - 256 * (number > 127) for number in identity)
                communicator = self._nccl.NcclCommunicator(2, signed, rank)
                stream, byte = cuda.Stream(non_blocking=True), cuda.alloc(1)
                call = communicator.recv if rank else communicator.send
                call(byte.ptr, 1, self._nccl.NCCL_UINT8, 1 - rank, stream.ptr)
                stream.synchronize()
        except (self._nccl.NcclError, cuda.runtime.CUDARuntimeError) as error:
            joined(f"NCCL failed: {error}")
        else:
            joined(CupyCommunicator(self._nccl, communicator, 1 - rank))


def _called(ended: Callable[[], None]) -> None:
    ended()

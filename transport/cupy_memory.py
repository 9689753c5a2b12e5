"""The memory of a card between processes, by CuPy: CUDA IPC handles of plain allocations and of interprocess events.

CuPy is imported when memory is opened, and not before. A handle cannot be opened in the process that made it. What stands in
the pool of parameters and KV is never exported: CUDA refuses it, and chunks move.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .device_memory import DeviceMemoryError, this_host

MISSING = "links between processes of a card need CuPy, which is not installed; run: pip install 'blockwright[gpu]'"


class CupyQueue:
    """A stream of CuPy that waits for no other."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._runtime = cupy.cuda.runtime
        with cupy.cuda.Device(device):
            self._stream = cupy.cuda.Stream(non_blocking=True)

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

    def host_memory(self, nbytes: int) -> memoryview:
        """Return pinned memory, to which a copy needs no wait of the host."""
        return memoryview(self._cupy.cuda.alloc_pinned_memory(nbytes)).cast("B")[:nbytes]

    def _do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self._cupy.cuda.Device(self._device):
                return call(*arguments)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceMemoryError(f"{getattr(call, '__name__', 'a call')} of CUDA failed: {error}") from error


def _called(ended: Callable[[], None]) -> None:
    ended()

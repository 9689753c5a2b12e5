"""Readings of the cards by NVML: name, driver, memory, processes, use, power, clocks, errors. Makes no CUDA context.

nvidia-ml-py is imported when cards are asked for, and only the head and the commands ask. What a card does not
report is None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BackendError

MISSING = "the cards cannot be asked, because nvidia-ml-py is not installed; run: pip install 'blockwright[gpu]'"
NO_DRIVER = "there is no NVIDIA driver here ({}); install it, or start the container with the card (docker run --gpus all)"
TRACES = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")))  # one is there with a driver
PROHIBITED, ALONE = 2, 3  # compute modes: no process may use the card; one at a time
THROTTLES = {  # NVML's bits of what holds clocks down, by the words for a person
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class CardProcess:
    """A process that uses a card. ``nbytes`` is None where the driver does not say, as in most containers."""

    pid: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Card:
    """A card as NVML reports it. Memory is in bytes, ``use`` a share, power in watts, clocks in MHz."""

    number: int
    name: str
    driver: str
    capability: tuple[int, int]
    total: int
    free: int
    processes: tuple[CardProcess, ...] = ()
    mode: int = 0
    mig: bool = False
    use: float | None = None
    power: float | None = None
    power_limit: float | None = None
    clock: int | None = None
    clock_limit: int | None = None
    throttled: tuple[str, ...] = ()
    ecc: bool | None = None
    errors: int | None = None  # uncorrected, since the driver was loaded

    @property
    def label(self) -> str:
        return f"card {self.number} ({self.name})"


class Nvml:
    """NVML, opened; raises BackendError, with the remedy, where there is no driver. ``module``: ``pynvml``, or a test's."""

    def __init__(self, module: Any = None) -> None:
        self._nvml = n = module or _module()
        try:
            n.nvmlInit()
            self._driver = _text(n.nvmlSystemGetDriverVersion())
        except n.NVMLError as error:
            raise BackendError(NO_DRIVER.format(error)) from None

    def cards(self) -> list[Card]:
        """Read all cards. Raises BackendError if the driver does not answer."""
        n = self._nvml
        try:
            return [self._card(number, n.nvmlDeviceGetHandleByIndex(number)) for number in range(n.nvmlDeviceGetCount())]
        except n.NVMLError as error:
            raise BackendError(f"the NVIDIA driver does not answer ({error}); see nvidia-smi") from None

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _card(self, number: int, handle: Any) -> Card:
        n, ask = self._nvml, self._ask
        memory = n.nvmlDeviceGetMemoryInfo(handle)
        major, minor = n.nvmlDeviceGetCudaComputeCapability(handle)
        use, power = ask(n.nvmlDeviceGetUtilizationRates, handle), ask(n.nvmlDeviceGetPowerUsage, handle)
        limit, mig = ask(n.nvmlDeviceGetEnforcedPowerLimit, handle), ask(n.nvmlDeviceGetMigMode, handle)
        reasons, ecc = ask(n.nvmlDeviceGetCurrentClocksThrottleReasons, handle), ask(n.nvmlDeviceGetEccMode, handle)
        uncorrected = n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
        return Card(
            number=number,
            name=_text(n.nvmlDeviceGetName(handle)),
            driver=self._driver,
            capability=(int(major), int(minor)),
            total=int(memory.total),
            free=int(memory.free),
            processes=tuple(
                CardProcess(int(one.pid), one.usedGpuMemory)
                for one in ask(n.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            ),
            mode=int(ask(n.nvmlDeviceGetComputeMode, handle) or 0),
            mig=bool(mig and mig[0]),
            use=None if use is None else use.gpu / 100,
            power=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
            clock=ask(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_SM),
            clock_limit=ask(n.nvmlDeviceGetMaxClockInfo, handle, n.NVML_CLOCK_SM),
            throttled=tuple(words for bit, words in THROTTLES.items() if (reasons or 0) & bit),
            ecc=None if ecc is None else bool(ecc[0]),
            errors=ask(n.nvmlDeviceGetTotalEccErrors, handle, *uncorrected),
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a card reports, or None if it does not support the question or denies it."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def number_as_nvml() -> None:
    """Have CUDA number the cards as NVML does, and a person. CUDA reads this when a process uses it first."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def _module() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        if not any(trace.exists() for trace in TRACES):  # the extra alone would not help
            raise BackendError(NO_DRIVER.format("no /dev/nvidiactl")) from None
        raise BackendError(MISSING) from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

"""A module in place of ``pynvml``: cards that a test describes, with the functions and the errors of the real one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """The error of every call that fails."""


def card(**fields: Any) -> dict[str, Any]:
    """Describe a card: an idle H100 but for ``fields``. A field that is None is not supported there."""
    return {
        "name": "NVIDIA H100", "capability": (9, 0), "total": 80 * GIB, "free": 79 * GIB, "processes": [], "mode": 0,
        "mig": [0, 0], "use": 0, "power": 71_500, "power_limit": 700_000, "clock": 345, "clock_limit": 1980, "reasons": 1,
        "ecc": [1, 1], "errors": 0, **fields,
    }  # fmt: skip


def field(name: str) -> Callable[..., Any]:
    """Make a function that returns a field, with the error of NVML where it is not supported."""

    def ask(module: FakeNvml, handle: dict[str, Any], *kind: int) -> Any:
        if handle[name] is None:
            raise NVMLError("Not Supported")
        return handle[name]

    return ask


class FakeNvml:
    """``cards`` are descriptions (``card``). ``driver`` "" is a machine without one. ``opened``: times not shut down."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, *cards: dict[str, Any], driver: str = "570.86.15", lost: bool = False) -> None:
        self.described, self.driver = list(cards), driver
        self.lost, self.opened = lost, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("NVML Shared Library Not Found")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self.described)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> dict[str, Any]:
        if self.lost:
            raise NVMLError("GPU is lost")
        return self.described[number]

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(total=handle["total"], free=handle["free"], used=handle["total"] - handle["free"])

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(gpu=self.use(handle), memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in self.processes(handle)]

    def nvmlDeviceGetTotalEccErrors(self, handle: dict[str, Any], kind: int, since: int) -> int:
        assert (kind, since) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        return int(self.errors(handle))

    nvmlDeviceGetName = field("name")
    nvmlDeviceGetCudaComputeCapability = field("capability")
    nvmlDeviceGetComputeMode = field("mode")
    nvmlDeviceGetMigMode = field("mig")
    nvmlDeviceGetPowerUsage = field("power")
    nvmlDeviceGetEnforcedPowerLimit = field("power_limit")
    nvmlDeviceGetClockInfo = field("clock")
    nvmlDeviceGetMaxClockInfo = field("clock_limit")
    nvmlDeviceGetCurrentClocksThrottleReasons = field("reasons")
    nvmlDeviceGetEccMode = field("ecc")
    use, processes = field("use"), field("processes")
    errors = field("errors")

"""How a card is opened, with a driver and torch calls that are accounts: what can be shown where there is no card."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockwright.gpu.cuda import driver as driver_module
from blockwright.gpu.cuda import staging
from blockwright.gpu.cuda.driver import CudaMemory, enter_card
from blockwright.gpu.cuda.platforms import open_card
from blockwright.gpu.cuda.probe import CPU_BUILD
from blockwright.gpu.errors import BackendError
from blockwright.gpu.select import open_backend

from .fake_driver import GRANULE, FakeDriver


class FakeTorchCuda:
    """The calls of ``torch.cuda`` that opening a card takes. A context becomes the thread's own with the device."""

    def __init__(self, driver: FakeDriver, patch: pytest.MonkeyPatch) -> None:
        self.driver, self.calls = driver, list[str]()
        self.error = ""
        self.sets_context = True
        for name in ("init", "set_device", "synchronize", "get_device_capability"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device))
        patch.setattr(torch.cuda, "Event", lambda blocking, enable_timing: SimpleNamespace(blocking=blocking))

    def init(self) -> None:
        self.calls.append("init")
        if self.error:
            raise RuntimeError(self.error)

    def set_device(self, number: int) -> None:
        self.calls.append(f"set_device {number}")
        if self.sets_context:
            self.driver.current = 100 + number

    def synchronize(self, device: Any) -> None:
        self.calls.append("synchronize")
        if self.error:
            raise RuntimeError(self.error)

    def get_device_capability(self, number: int) -> tuple[int, int]:
        return 9, 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    driver = FakeDriver()
    monkeypatch.setattr(driver_module, "_driver", lambda: driver)
    monkeypatch.setattr(staging.StagingRing, "_make", lambda ring, nbytes: torch.empty(nbytes, dtype=torch.uint8))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return FakeTorchCuda(driver, monkeypatch)


def test_a_card_is_opened_by_its_number_with_chunks_of_the_driver(cuda: FakeTorchCuda) -> None:
    pytest.importorskip("triton")
    backend: Any = open_backend("cuda:1", "bfloat16", 1)
    assert cuda.calls == ["init", "set_device 1", "synchronize"]
    assert backend.name == "cuda-sm90"
    assert backend.numerics.startswith("cuda-sm90-triton-")
    assert backend.numerics.endswith("-bfloat16")
    assert (backend.chunk, backend.alignment, backend.slot_unit) == (GRANULE, 256, 4096)
    memory = backend.open_memory(backend.chunk, 4)
    assert isinstance(memory, CudaMemory)
    memory.map(memory.reserve(2), [3, 1])
    assert cuda.driver.calls.count("cuMemMap") == 2
    backend.enter()
    assert cuda.calls[3:] == ["init", "set_device 1", "synchronize"], "a thread that uses the card gets its context"
    assert cuda.driver.retained == 0
    backend.check()
    cuda.error = "CUDA error: an illegal memory access was encountered\nsome advice"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        backend.check()


def test_a_card_that_torch_cannot_use_is_said_in_one_line(cuda: FakeTorchCuda) -> None:
    pytest.importorskip("triton")
    cuda.error = "No CUDA GPUs are available\nCompile with TORCH_USE_CUDA_DSA"
    with pytest.raises(BackendError, match=r"^card 0 cannot be used .No CUDA GPUs are available.; see blockwright doctor$"):
        open_card(0, "float32")


def test_a_thread_without_the_context_of_the_card_is_refused(cuda: FakeTorchCuda) -> None:
    cuda.sets_context = False
    with pytest.raises(BackendError, match="this thread's CUDA context is not the one of card 2"):
        enter_card(2)
    assert cuda.driver.retained == 0


def test_a_type_without_kernels_and_triton_missing_are_said(cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="dtype 'float16' is not supported on CUDA; choose float32 or bfloat16"):
        open_card(0, "float16")
    monkeypatch.setitem(sys.modules, "blockwright.gpu.cuda.ops_triton", None)
    with pytest.raises(BackendError, match=r"the kernels need triton .*pip install 'blockwright\[gpu\]'"):
        open_card(0, "float32")
    assert not cuda.calls


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a build of torch without CUDA")
def test_a_build_of_torch_without_cuda_is_said() -> None:
    assert "without CUDA" in CPU_BUILD
    with pytest.raises(BackendError, match=r"^card 0 cannot be used .Torch not compiled with CUDA enabled.; see"):
        enter_card(0, FakeDriver())

"""The rough speed of a device."""

from __future__ import annotations

import os

import pytest
import torch

from blockwright.gpu import speed
from blockwright.gpu.errors import BackendError
from blockwright.gpu.speed import FUSED, Speed, measure_speed


def test_the_speed_of_the_processor_is_that_of_one_thread_times_the_threads(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(speed, "_fastest", lambda turn: (turn(), 0.5)[1])
    before = torch.get_num_threads()
    assert measure_speed("cpu", 3) == Speed(3 * speed.READ / 0.5, 3 * speed.SIDE**3 / 0.5)
    assert torch.get_num_threads() == before


def test_it_takes_the_fastest_turn_and_no_time_that_others_had_the_processor(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    times = iter([1.0, 4.0, 4.0, 5.5, 6.0, 8.0])
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    assert speed._fastest(lambda: None) == 1.5


def test_a_card_says_what_its_clocks_and_its_width_allow(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    class Card:
        memory_clock_rate, memory_bus_width = 2_619_000, 5120  # kHz, bits
        multi_processor_count, clock_rate = 132, 1_980_000

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    found = measure_speed("cuda:1", 1)
    assert os.environ.pop("CUDA_DEVICE_ORDER") == "PCI_BUS_ID", "said before CUDA is used first in this process"
    assert found == Speed(2 * 2.619e9 * 640, FUSED * 132 * 1.98e9)


def test_a_driver_that_torch_cannot_use_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nMore.")

    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    with pytest.raises(BackendError) as refused:
        measure_speed("cuda:0", 1)
    assert str(refused.value) == (
        "torch cannot use cuda:0 (The NVIDIA driver on your system is too old (found version 11040)); install the driver "
        "that this torch needs, or a torch for the driver that is there"
    )

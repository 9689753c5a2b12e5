"""Speed of a device, measured in a few milliseconds: bytes read and multiplications per second.

Rough figures, by which machines are compared. A card's are what its clocks and its width allow, so
that no library takes memory on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .cuda.nvml import number_as_nvml
from .errors import BackendError

READ = 16 << 20  # bytes: more than a core's own caches hold
SIDE = 256  # rows and columns of the product
TURNS = 3  # the fastest counts
FUSED = 1024  # 16-bit multiplications of a multiprocessor per cycle, of the oldest cards that are supported
CANNOT = "torch cannot use {} ({}); install the driver that this torch needs, or a torch for the driver that is there"


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a device: bytes read and multiplications per second."""

    bandwidth: float
    products: float


def measure_speed(device: str, threads: int) -> Speed:
    """Return the speed of a device; of the CPU the speed of one thread, times ``threads``.

    Only time that the thread has the processor counts, since other workers may measure at the same moment.
    Raises BackendError, with the remedy, if torch cannot use the card.
    """
    if device.startswith("cuda:"):
        number_as_nvml()
        try:
            return _of_card(torch.cuda.get_device_properties(device))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise BackendError(CANNOT.format(device, reason)) from None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        values = torch.ones(READ // 4)
        square = torch.ones(SIDE, SIDE)
        product = torch.empty(SIDE, SIDE)
        reading = _fastest(lambda: values.sum())
        multiplying = _fastest(lambda: torch.mm(square, square, out=product))
    finally:
        torch.set_num_threads(before)
    return Speed(threads * READ / reading, threads * SIDE**3 / multiplying)


def _fastest(turn: Callable[[], object]) -> float:
    times = []
    for _ in range(TURNS):
        began = time.thread_time()
        turn()
        times.append(time.thread_time() - began)
    return max(min(times), 1e-9)


def _of_card(card: Any) -> Speed:
    """Return what a card's clocks (in kHz) and its width allow. Both edges of a memory clock carry data."""
    bandwidth = 2.0 * card.memory_clock_rate * 1e3 * card.memory_bus_width / 8
    return Speed(bandwidth, FUSED * card.multi_processor_count * card.clock_rate * 1e3)

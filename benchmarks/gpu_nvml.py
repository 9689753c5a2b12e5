"""Part 10 of ``gpu.py``: what NVML says of the card, and how fast it says it."""

from __future__ import annotations

import time

from gpu_report import NotHere, Part

from blockwright.gpu.cuda.nvml import Card, Nvml
from blockwright.gpu.errors import BackendError

ASKED = 20


def open_nvml() -> Nvml:
    """Open NVML. Raises ``NotHere`` where there is no package or no driver."""
    try:
        return Nvml()
    except BackendError as error:
        raise NotHere(str(error)) from None


def first(nvml: Nvml) -> Card:
    """Read the first card."""
    return nvml.cards()[0]


def used(nvml: Nvml) -> int:
    """Return the bytes that all processes use of the first card."""
    card = first(nvml)
    return card.total - card.free


def measure(part: Part) -> None:
    """Add the card's figures, and the time of asking for them."""
    with part.attempt("card"):
        nvml = open_nvml()
        first(nvml)
        began = time.perf_counter()
        for _ in range(ASKED):
            card = first(nvml)
        seconds = (time.perf_counter() - began) / ASKED
        figures = {"power_w": card.power, "clock_mhz": card.clock, "use": card.use, "ask_ms": 1000 * seconds}
        figures |= {"memory_bytes": float(card.total), "used_bytes": float(card.total - card.free)}
        part.add("card", {name: float(value) for name, value in figures.items() if value is not None})

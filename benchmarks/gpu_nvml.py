"""Part 10 of ``gpu.py``: what NVML says of the card, and how fast it says it."""

from __future__ import annotations

import importlib
import time
from typing import Any

from gpu_card import Card
from gpu_report import NotHere, Part

ASKED = 20


class Nvml:
    """The first card as NVML sees it. Raises ``NotHere`` where there is no package or no driver."""

    def __init__(self, card: Card) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ModuleNotFoundError:
            raise NotHere("nvidia-ml-py is not installed") from None
        except Exception as error:
            raise NotHere(f"NVML does not start: {error}") from None
        self._card = self._nvml.nvmlDeviceGetHandleByIndex(0)

    def used(self) -> int:
        """Return the bytes that all processes use."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._card).used)

    def figures(self) -> dict[str, float]:
        """Return memory, power, clocks, use."""
        nvml, card = self._nvml, self._card
        memory, rates = nvml.nvmlDeviceGetMemoryInfo(card), nvml.nvmlDeviceGetUtilizationRates(card)
        return {
            "memory_bytes": float(memory.total),
            "used_bytes": float(memory.used),
            "power_w": nvml.nvmlDeviceGetPowerUsage(card) / 1000,
            "clock_mhz": float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            "use_percent": float(rates.gpu),
            "temperature_c": float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
        }


def measure(part: Part) -> None:
    """Add the card's figures, and the time of asking for them."""
    with part.attempt("card"):
        nvml = Nvml(part.card)
        nvml.figures()
        began = time.perf_counter()
        for _ in range(ASKED):
            found = nvml.figures()
        found["ask_ms"] = 1000 * (time.perf_counter() - began) / ASKED
        part.add("card", found)

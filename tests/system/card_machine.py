"""A server on a machine whose driver is a stand-in, with cards as a file of the test describes them.

Run as a module it is the server itself (same arguments). Real are the choice of a card, the budget, the readings, and all
that shows them. A worker that opens a card gets the mirror.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blockwright.actors.worker.messages import WorkerConfig
from blockwright.runtime import Node
from blockwright.tests.gpu.cuda.fake_nvml import FakeNvml, card

CARDS = "BLOCKWRIGHT_CARDS"  # environment: a file that lists of each card the fields in which it is no idle H100
H100 = SimpleNamespace(memory_clock_rate=2619000, memory_bus_width=5120, multi_processor_count=132, clock_rate=1980000)


class MachineNvml(FakeNvml):
    """The stand-in for the driver, which reads the file at each reading; without it the cards are lost."""

    def nvmlDeviceGetCount(self) -> int:
        try:
            self.described = [card(**fields) for fields in json.loads(Path(os.environ[CARDS]).read_text())]
        except FileNotFoundError:
            raise self.NVMLError("GPU is lost") from None
        return super().nvmlDeviceGetCount()


def put_in_place() -> None:
    """Have this process find the stand-in, and all parts of a host that a card needs."""
    from blockwright.actors import device_choice
    from blockwright.gpu.cuda import nvml, probe

    def driver() -> Any:
        return MachineNvml()

    nvml._module = driver
    device_choice.look_at_host = lambda: probe.HostParts(cuda=True, missing=(), compiler="gcc", headers="include")


async def start(node: Node, config: WorkerConfig) -> None:
    """Entry of the worker process."""
    import torch

    from blockwright.actors.worker import main as worker_main
    from blockwright.gpu.cuda import platforms

    def open_card(number: int, dtype: str, threads: int, bits: str) -> Any:
        return platforms.open_mirror(dtype, threads, seed=number, bits=bits)

    put_in_place()
    platforms.open_card = open_card  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda device: H100  # type: ignore[assignment]
    await worker_main.start(node, config)


if __name__ == "__main__":
    from blockwright.actors import topology
    from blockwright.api.commands.cli import main

    topology.WORKER = "blockwright.tests.system.card_machine:start"
    put_in_place()
    raise SystemExit(main())

"""Cards actor: reads the card that workers compute on once a second, by NVML. Lives on the head, the only process that asks.

Where no worker computes on a card there is no such actor.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..gpu.cuda.nvml import Card, Nvml
from ..gpu.errors import BackendError
from ..runtime.actor.actor import Actor
from ..runtime.actor.endpoint import endpoint
from ..transport.clock import Timer

log = logging.getLogger("blockwright.cards")
PERIOD = 1.0  # seconds between two readings


class Cards(Actor):
    """The cards actor (see the module). ``number`` is the card's; ``module`` stands for ``pynvml`` in tests."""

    def __init__(self, number: int, module: Any = None) -> None:
        self._number, self._module = number, module
        self._nvml: Nvml | None = None
        self._card: Card | None = None  # as read last; None while it does not answer
        self._timer: Timer | None = None

    async def on_start(self) -> None:
        await self._read()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._nvml is not None:
            self._nvml.close()

    @endpoint(urgent=True)
    async def view(self) -> list[dict[str, Any]]:
        """Return the last reading as ``/admin/cluster`` shows it; nothing while the card does not answer."""
        return [] if self._card is None else [card_view(self._card)]

    async def _read(self) -> None:
        try:
            if self._nvml is None:
                self._nvml = await asyncio.to_thread(Nvml, self._module)
            cards = await asyncio.to_thread(self._nvml.cards)
            self._card = next((card for card in cards if card.number == self._number), None)
        except BackendError as error:
            if self._card is not None:  # said once for each time that it falls silent
                log.warning("card %s is not shown: %s", self._number, error)
            self._card = None
        clock = self.node.clock
        self._timer = clock.call_at(clock.now() + PERIOD, lambda: self.node.post(self.ref.address, self._read))


def card_view(card: Card) -> dict[str, Any]:
    """Return a card as plain data: memory in bytes, use from 0 to 1, power in watts, clocks in MHz."""
    return {
        "id": f"cuda:{card.number}",
        "name": card.name,
        "driver": card.driver,
        "memory": {"total": card.total, "free": card.free},
        "processes": [{"pid": one.pid, "bytes": one.nbytes} for one in card.processes],
        "use": card.use,
        "power": card.power,
        "power_limit": card.power_limit,
        "clock": card.clock,
        "clock_limit": card.clock_limit,
        "throttled": list(card.throttled),
        "errors": card.errors,
    }

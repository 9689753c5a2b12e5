"""Cards actor: reads the cards of the head's machine once a second, by NVML. Lives on the head, the only process that asks.

Where workers are not meant for a card there is no such actor.
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
    """The cards actor (see the module).

    ``number`` is the card's; None: the workers choose, and all are read. ``module`` stands for ``pynvml`` in tests.
    """

    def __init__(self, number: int | None, module: Any = None) -> None:
        self._number, self._module = number, module
        self._nvml: Nvml | None = None
        self._cards: list[Card] = []  # as read last; empty while they do not answer
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
        return [card_view(card) for card in self._cards]

    async def _read(self) -> None:
        try:
            if self._nvml is None:
                self._nvml = await asyncio.to_thread(Nvml, self._module)
            cards = await asyncio.to_thread(self._nvml.cards)
            self._cards = [card for card in cards if self._number in (None, card.number)]
        except BackendError as error:
            if self._nvml is None and self._number is None:
                return  # this machine has none
            if self._cards:  # said once for each time that they fall silent
                numbers = ", ".join(str(card.number) for card in self._cards)
                log.warning("card %s is not shown: %s", numbers, error)
            self._cards = []
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

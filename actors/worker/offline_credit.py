"""Offline credit: how many offline requests a worker accepts, as sent to gateways.

Heartbeats always carry it; reports carry it while offline sequences are present.
"""

from __future__ import annotations

from ...policies.plan.coefficients import Coefficients
from ...policies.sweep.offline_capacity import OfflineCapacity, encode_capacities
from ...policies.sweep.state import SweepState


class OfflineCredit:
    """The credit that each gateway was last sent. ``state`` is the worker's, and is only read."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._blends: set[str] = set()  # gateways that had a report while offline sequences were present
        # the credit last sent to each gateway; a lost heartbeat is made good by the next one
        self._told: dict[str, list[OfflineCapacity]] = {}

    def changed_for(self, gateway: str) -> list[OfflineCapacity] | None:
        """Return the credit for a report, or None if there is no change to send.

        Changes are reported while offline sequences are present, and once more after they are gone.
        """
        if self._state.parts.queue.offline:
            self._blends.add(gateway)
        elif gateway in self._blends:
            self._blends.remove(gateway)
        else:
            return None
        rooms = self._state.offline_capacities()
        if rooms == self._told.get(gateway):
            return None
        self._told[gateway] = rooms
        return rooms

    def beat(self, costs: Coefficients | None) -> dict[str, object]:
        """Return the heartbeat's fields. ``costs`` are the costs of sweeps, if known."""
        rooms = self._state.offline_capacities()
        self._told = dict.fromkeys(self._told, rooms)
        return encode_capacities(rooms, costs)

"""What a worker tells gateways of the offline requests that it takes: in heartbeats, and in reports while it has any."""

from __future__ import annotations

from ...policies.plan.coefficients import Coefficients
from ...policies.sweep.offline_capacity import OfflineCapacity, encode_capacities
from ...policies.sweep.state import SweepState


class OfflineCredit:
    """See the module. ``state``: the worker's, read alone."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._blends: set[str] = set()  # gateways that had a report while offline sequences were here
        self._told: dict[str, list[OfflineCapacity]] = {}  # what they know, if no heartbeat was lost: else until the next

    def tell(self, gateway: str) -> list[OfflineCapacity] | None:
        """For a report: what has changed while offline sequences are here, and once more."""
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
        """Of a heartbeat. ``costs``: of sweeps, where they are known."""
        rooms = self._state.offline_capacities()
        self._told = dict.fromkeys(self._told, rooms)
        return encode_capacities(rooms, costs)

"""What a worker tells gateways of the offline requests that it takes: in heartbeats, and in reports while it has any."""

from __future__ import annotations

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.sweep.offline_room import OfflineRoom, tell_rooms
from blockwright.policies.sweep.state import SweepState


class OfflineCredit:
    """See the module. ``state``: the worker's, read alone."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._blends = False  # offline sequences were here at the last report

    def tell(self) -> list[OfflineRoom] | None:
        """For a report: while offline sequences are here, and once more."""
        before, self._blends = self._blends, self._state.parts.queue.offline
        return self._state.offline_rooms() if before or self._blends else None

    def beat(self, costs: Coefficients | None) -> dict[str, object]:
        """Of a heartbeat. ``costs``: of sweeps, where they are known."""
        return tell_rooms(self._state.offline_rooms(), costs)

"""Notice to unloaded blocks that the last open plan which names them has ended.

A block's actor may outlive its unloading by a few plans. Open this file to see when it hears that it can end.
"""

from __future__ import annotations

from ...policies.sweep.state import SweepState
from ...runtime.actor.ref import Ref


class BlockEndings:
    """Unloaded blocks that wait for open plans. ``state`` is the sweep machine; its plans end in order."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._waiting: list[tuple[int, Ref]] = []  # the last plan that may name a block, and the block's actor

    def await_plans(self, block: Ref) -> None:
        """Notify ``block`` when all plans that are open now have ended, since each of them may name it."""
        self._waiting.append((self._state.number, block))
        self.notify()

    def notify(self) -> None:
        """Notify blocks of the end of their last plan. Called whenever a plan may have ended."""
        oldest = self._state.number - self._state.open_plans
        while self._waiting and self._waiting[0][0] <= oldest:
            self._waiting.pop(0)[1].ended.cast()

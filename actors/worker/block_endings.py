"""Blocks that were unloaded while plans that name them are open: their actors hear when the last of these has ended."""

from __future__ import annotations

from ...policies.sweep.state import SweepState
from ...runtime.actor.ref import Ref


class BlockEndings:
    """``state``: whose plans they are; they end in order."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._waiting: list[tuple[int, Ref]] = []  # the last plan that may name a block, and the block's actor

    def await_plans(self, block: Ref) -> None:
        """All that are open now may name it."""
        self._waiting.append((self._state.number, block))
        self.tell()

    def tell(self) -> None:
        """A plan may have ended."""
        oldest = self._state.number - self._state.open_plans
        while self._waiting and self._waiting[0][0] <= oldest:
            self._waiting.pop(0)[1].ended.cast()

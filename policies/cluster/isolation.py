"""Isolation of a worker: whether a node that has sequences at it is still heard.

A worker whose host is cut off would compute in vain, while its requests have begun anew elsewhere. So it stops planning once
every node that has sequences at it has been silent for ``silence``: the gateways of its own sequences, and the homes of its
guests. It plans again when one of them is heard. Nothing is lost by that: its sequences keep their pages until they are
ended from outside.

Silence is counted only while the worker's own loop runs, so one that stood still blames no node. It plans nothing, though,
while the last sign of all of them is ``LONGEST`` times ``silence`` old, however it passed that time: if it is cut off, it
stops within twice ``silence``. Pure; time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

STALL_FACTOR = 1.5  # a look that comes later than this many periods counts as this many
LONGEST = 1.5  # times ``silence``


def nodes_with_sequences(gateways: Iterable[str], homes: Iterable[str]) -> set[str]:
    """Return the nodes that have sequences at a worker.

    gateways: addresses (``node/actor``) of the gateways of its own sequences. homes: workers that are home of its guests.
    """
    return {gateway.partition("/")[0] for gateway in gateways} | {*homes}


class Isolation:
    """The silence around one worker.

    silence: seconds after which a node is cut off; 0: none ever is. every: seconds between two looks.
    """

    def __init__(self, silence: float, every: float) -> None:
        self.isolated = False
        self._silence, self._longest = silence, STALL_FACTOR * every
        self._heard: dict[str, tuple[float, float]] = {}  # node -> when it was last heard, and seconds of silence since
        self._looked = 0.0  # time of the last look
        self._last = math.inf  # when one of them was last heard; infinite: there is none
        self._held = False  # a plan was held back

    def stops(self, now: float) -> bool:
        """Return whether to plan nothing now. A plan that is held back is made at the next look, if it can be."""
        self._held = self._silence > 0 and now - self._last >= LONGEST * self._silence
        return self.isolated or self._held

    def look(self, heard: Mapping[str, float], now: float) -> bool:
        """Note when each node that has sequences here was last heard, by the clock of ``now``. Return whether to plan anew:
        ``isolated`` has changed, or a plan was held back.

        A worker without sequences of others has nothing to stop.
        """
        passed = min(max(0.0, now - self._looked), self._longest)
        self._looked = now
        self._heard = {node: self._silent(node, at, passed) for node, at in heard.items()}
        before = self.isolated
        self._last = max(heard.values(), default=math.inf)
        silent = [seconds for _, seconds in self._heard.values()]
        self.isolated = self._silence > 0 and bool(silent) and min(silent) >= self._silence
        return self.isolated != before or self._held

    def _silent(self, node: str, at: float, passed: float) -> tuple[float, float]:
        last, seconds = self._heard.get(node, (at, 0.0))
        return (at, 0.0) if at != last else (at, seconds + passed)

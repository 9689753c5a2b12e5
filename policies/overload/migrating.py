"""Live migration by load: the choice of running sequences that move to another instance, with their KV.

After Llumnix (OSDI 2024) and the thresholds of its public code, to compare parameter dropping with. An instance's
*freeness* is how many pages each of its sequences could still take. The first in its queue counts as if it ran (virtual
usage): where it does not fit, freeness is negative, and running sequences make room for it. Instances below ``LEAST`` are
sources, the others destinations; the least free source is paired with the freest destination, and so on. Each instance
takes part in one migration at a time; the shortest sequence goes, which has least to copy.

Pure: readings come in, pairs go out. The code that carries a migration out (the simulator; a gateway's ``Move``) chooses
the sequence once the pair is known, so that readings are a few numbers for each instance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LEAST = 3.0  # free pages for each sequence
WORTH = 2  # least pages of a sequence that is worth a migration


@dataclass(frozen=True, slots=True, kw_only=True)
class FreenessReading:
    """The KV of one instance, in pages. ``head``: pages that the first in its queue needs; 0: the queue is empty."""

    free: int
    running: int
    head: int = 0

    @property
    def freeness(self) -> float:
        """The free pages for each sequence; infinite if there is none."""
        sequences = self.running + (self.head > 0)
        return (self.free - self.head) / sequences if sequences else float("inf")


@dataclass(frozen=True, slots=True)
class MigrationPair:
    """The decision to move one sequence from one instance to another."""

    source: str
    destination: str


def migration_pairs(
    readings: Mapping[str, FreenessReading], busy: Collection[str] = (), *, least: float = LEAST
) -> list[MigrationPair]:
    """Return the instances that should hand a sequence over, with their destinations.

    Args:
        readings: of all instances of a model, by name.
        busy: instances that take part in a migration already.
        least: freeness below which sequences leave.
    """
    order = sorted((reading.freeness, name) for name, reading in readings.items() if name not in busy)
    sources = [name for free, name in order if free < least and readings[name].running]
    destinations = [name for free, name in reversed(order) if free >= least]
    return [MigrationPair(*pair) for pair in zip(sources, destinations, strict=False)]


def migrated(pages: Mapping[str, int], reading: FreenessReading, *, least: float = LEAST) -> str | None:
    """Return the sequence to move: the shortest. None: none is worth it, or the destination would be short itself.

    Args:
        pages: of the sequences that decode at the source, by request.
        reading: of the destination.
    """
    request = min(
        (name for name, count in pages.items() if count >= WORTH), key=lambda name: (pages[name], name), default=None
    )
    if request is None or (reading.free - reading.head - pages[request]) / (reading.running + 1) < least:
        return None
    return request

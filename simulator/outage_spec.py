"""Description of what goes away in a simulated cluster: instances that die, a head, a part of the workers, and, in a roll,
each worker once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..policies.nearest import suggestion
from .record import Fault, Most, Share

SILENCE = 2.5  # seconds without a sign of a worker that mean its loss, as in the settings of a live cluster
MOST_NAMED = 12  # instances that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathSpec:
    """The death of an instance at a time; its supervisor starts it again."""

    instance: str  # with several stages: one device of it, such as "instance-0.1"
    at: float  # seconds
    down: float = 5.0  # seconds until it is up again, with nothing loaded
    stalls: bool = False  # it does not die, but makes no progress until the controller kills it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLossSpec:
    """The absence of the head, from its death until the next one has adopted the members."""

    at: float  # seconds
    away: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSpec:
    """A part of the workers that no member reaches for a while: the first ones."""

    at: float  # seconds
    seconds: float  # until they are reached again
    # of the workers; a head that misses more than half of them would declare none down
    share: Annotated[float, Most(0.5)] = 0.1
    warm: bool = True  # they come back with the parameters that they had; otherwise with nothing loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class RollSpec:
    """A roll to another release: a few workers join, and as many are drained and started anew, until all are.

    Sequences have the grace of ``provisioning`` to end on a drained worker; then they go on elsewhere.
    """

    at: float  # seconds
    surge: Share = 0.02  # of the workers; the last instances stand by for it
    start: float = 5.0  # seconds until the new release of a worker is up, with nothing loaded


def check_deaths(deaths: Sequence[DeathSpec], names: Sequence[str], error: Fault) -> None:
    """Check that deaths are of instances that exist. ``names``: of all devices."""
    for n, death in enumerate(deaths):
        if death.instance not in names:
            many = f"there are {len(names)}, from {names[0]} to {names[-1]}"
            says = suggestion(death.instance, names) if len(names) <= MOST_NAMED else many
            raise error(["deaths", n, "instance"], f"is {death.instance!r}; {says}")


@dataclass(frozen=True, slots=True)
class Outages:
    """All outages beside deaths of instances. others: what else changes instances, by name of its field."""

    heads: tuple[HeadLossSpec, ...]
    cuts: tuple[CutSpec, ...]
    roll: RollSpec | None
    workers: int
    others: Sequence[str]

    def check(self, error: Callable[[list[str | int], str], Exception]) -> None:
        """Raise the first mistake, as the exception that ``error`` makes."""
        for place, says in self._faults():
            raise error(place, says)

    def _faults(self) -> Iterator[tuple[list[str | int], str]]:
        first = "heads" if self.heads else "cuts" if self.cuts else "roll"
        if (self.heads or self.cuts or self.roll) and self.others:
            yield [first], f"is given together with {self.others[0]}; leave out one or the other"
        back = 0.0
        for n, head in enumerate(self.heads):
            if not head.away:
                yield ["heads", n, "away"], "is 0; give the seconds until the next head, or leave the entry out"
            if head.at < back:
                yield ["heads", n, "at"], f"is {head.at:g}, and the head before is away until {back:g}; give a later time"
            back = head.at + head.away
        for n, cut in enumerate(self.cuts):
            if cut.seconds <= SILENCE:
                says = f"is {cut.seconds:g}; give more than the {SILENCE:g} s of silence after which a worker is missed"
                yield ["cuts", n, "seconds"], says
            if not int(cut.share * self.workers):
                yield ["cuts", n, "share"], f"is {cut.share:g}, which is no worker of {self.workers}; give more"
        if self.roll is not None and not 0 < self.standing_by < self.workers:
            says = f"is {self.roll.surge:g}, which is {self.standing_by} of {self.workers} workers; give another share"
            yield ["roll", "surge"], says
        if self.roll is not None and (self.heads or self.cuts):
            yield ["roll"], f"is given together with {first}; leave out one or the other"

    @property
    def standing_by(self) -> int:
        """The instances that stand by for a roll: the share of surge of the others."""
        return 0 if self.roll is None else round(self.workers * self.roll.surge / (1 + self.roll.surge))

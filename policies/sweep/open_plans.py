"""The open plans, which were given to the device and have not ended, with the data needed at their end."""

from __future__ import annotations

from dataclasses import dataclass

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import SweepPlan
from .events import SatOut


@dataclass(slots=True)
class OpenPlan:
    """The columns of one plan's batch, as in ``SweepPlan``. Never changed; freezing would cost more than all else here."""

    sequences: list[int]  # sequence of each batch row
    start: list[int]
    count: list[int]
    sample: list[int]
    score: list[int]
    verify: list[int]
    guessed: list[int]  # batch rows with drafts that are verified elsewhere
    plain: bool  # every row computes one position here and draws the token after it
    starved: bool  # some row lacked memory or hit its cap, so that admissions stopped
    supposed: list[int]  # batch rows that are computed on a guess
    parked: list[SatOut]  # of each sequence that sits it out; the seconds are known at its end


class OpenPlans:
    """The open plans by number, in the order in which they were made and will end."""

    def __init__(self) -> None:
        self._plans: dict[int, OpenPlan] = {}
        self.number = 1  # number of the next plan

    def add(
        self,
        plan: SweepPlan,
        sequences: list[int],
        guessed: list[int],
        plain: bool,
        starved: bool,
        parked: list[SatOut],
    ) -> None:
        """Add a plan that is handed to the device."""
        self._plans[plan.number] = OpenPlan(
            sequences,
            plan.start,
            plan.count,
            plan.sample,
            plan.score,
            plan.verify,
            guessed,
            plain,
            starved,
            plan.supposed,
            parked,
        )
        self.number += 1

    def end(self, number: int) -> OpenPlan:
        """Remove a plan and return it. Each plan is ended exactly once."""
        if number not in self._plans:  # no assert: an event log keeps the text, and pytest would add an address to it
            raise AssertionError(f"plan {number} is not open; open are: {', '.join(map(str, self._plans)) or 'none'}")
        return self._plans.pop(number)

    def skip(self, sweeps: int) -> None:
        """Count plans that were made and ended in a jump."""
        self.number += sweeps

    def sequences(self, number: int) -> list[int]:
        """Return the sequence of each batch row of an open plan."""
        return self._plans[number].sequences

    def only(self, number: int) -> OpenPlan | None:
        """Return the open plan of this number if no other is open, else None."""
        return self._plans.get(number) if len(self._plans) == 1 else None

    def __len__(self) -> int:
        return len(self._plans)

    def fork(self) -> OpenPlans:
        copy = OpenPlans()
        copy._plans, copy.number = self._plans.copy(), self.number
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {"number": self.number, "plans": [[number, to_plain(plan)] for number, plan in self._plans.items()]}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> OpenPlans:
        plans = cls()
        plans.number = data["number"]
        plans._plans = {number: from_plain(OpenPlan, plan) for number, plan in data["plans"]}
        return plans

    def check(self) -> dict[int, int]:
        """Return how many open plans name each sequence. Raise AssertionError when an invariant is broken."""
        named: dict[int, int] = {}
        for number, plan in self._plans.items():
            assert number < self.number, f"plan {number} is open and was not made yet"
            assert len(plan.sequences) == len(plan.start) == len(plan.count), f"the columns of plan {number} differ"
            for s in plan.sequences:
                named[s] = named.get(s, 0) + 1
        return named

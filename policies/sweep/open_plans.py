"""Plans that the device has been given and that have not ended: what of them is needed when they do."""

from __future__ import annotations

from dataclasses import dataclass

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import SweepPlan


@dataclass(slots=True)
class OpenPlan:
    """Columns of one plan's batch, as in ``SweepPlan``; never changed (freezing would cost more than all else here)."""

    sequences: list[int]  # of each batch row
    start: list[int]
    count: list[int]
    sample: list[int]
    score: list[int]
    plain: bool  # every row computes one position here and draws the token after it
    starved: bool  # some row lacked memory, so that nobody was admitted, or nobody of its account


class OpenPlans:
    """By number, in the order in which they were made and will end."""

    def __init__(self) -> None:
        self._plans: dict[int, OpenPlan] = {}
        self.number = 1  # of the next plan

    def add(self, plan: SweepPlan, sequences: list[int], plain: bool, starved: bool) -> None:
        """The plan is handed to the device."""
        self._plans[plan.number] = OpenPlan(sequences, plan.start, plan.count, plan.sample, plan.score, plain, starved)
        self.number += 1

    def end(self, number: int) -> OpenPlan:
        """Each plan is ended exactly once."""
        if number not in self._plans:  # no assert: an event log keeps the text, to which pytest would add an address
            raise AssertionError(f"plan {number} is not open; open are: {', '.join(map(str, self._plans)) or 'none'}")
        return self._plans.pop(number)

    def skip(self, sweeps: int) -> None:
        """So many plans were made and ended in one jump."""
        self.number += sweeps

    def sequences(self, number: int) -> list[int]:
        """The sequence of each batch row of an open plan."""
        return self._plans[number].sequences

    def only(self, number: int) -> OpenPlan | None:
        """The open plan of this number if no other one is open."""
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
        """How many open plans name each sequence."""
        named: dict[int, int] = {}
        for number, plan in self._plans.items():
            assert number < self.number, f"plan {number} is open and was not made yet"
            assert len(plan.sequences) == len(plan.start) == len(plan.count), f"the columns of plan {number} differ"
            for s in plan.sequences:
                named[s] = named.get(s, 0) + 1
        return named

"""Fair share: a virtual token counter for each account decides whose sequence starts next, against starvation.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2. A counter grows by the cost of
its account's computation, divided by the account's weight. Prompt tokens are charged when a sequence starts, except tokens
found in the prefix cache (so the first user of a shared page pays for it). Generated tokens are charged page by page. The
account with the least counter starts next. An account that begins to wait is raised to the least counter of the accounts
that wait already, or to the counter of the last one that waited: no account saves up service while idle.

A token of a lower tier costs less, in proportion to the parameters that it passes (``model/tier_work.py``). The same
counters serve the tiers of a family within an account (``tier_lines.py``).

Counters are whole numbers, so that the order in which costs are added changes nothing: jumps and stepping agree. A
position is paid for once, however often it is computed: a preempted account does not pay for what it has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.tier_work import WHOLE
from ..plain import Plain

Flow = tuple[int, str]  # group whose members share (here the ``shared_class`` of ``requests/urgency.py``), member (account)
EVERYBODY = "*"  # key of the weight of all accounts without their own
SCALE = WHOLE  # counter of one token at cost and weight 1, so that division by weights is precise


class FairShare:
    """The counters of one worker (see the module). An account has a counter in each shared class that it uses."""

    def __init__(self, weights: Mapping[str, int], input_cost: int, output_cost: int) -> None:
        self._weights = dict(weights)
        self._input = input_cost
        self._output = output_cost
        self._counters: dict[Flow, int] = {}
        self._last: dict[int, str] = {}  # class -> the account that waited last
        self._work: dict[str, int] = {}  # by account: total cost, in parts of ``SCALE``, regardless of its weight

    @property
    def served(self) -> dict[str, int]:
        """The total cost of each account, regardless of its weight."""
        return {account: (work + SCALE // 2) // SCALE for account, work in self._work.items()}

    def counter(self, flow: Flow) -> int:
        """Return the service of a flow so far, divided by its weight."""
        return self._counters.get(flow, 0)

    def join(self, flow: Flow, waiting: Iterable[Flow]) -> None:
        """Add a flow that begins to wait beside ``waiting``."""
        self._counters[flow] = max(self._counters.get(flow, 0), self._floor(flow[0], waiting))

    def _floor(self, number: int, waiting: Iterable[Flow]) -> int:
        """Return the counter with which a flow of this class starts to wait."""
        floor = min((self._counters[other] for other in waiting if other[0] == number), default=-1)
        if floor < 0 and (last := self._last.get(number)) is not None:
            floor = self._counters[number, last]
        return max(floor, 0)

    def forget(self, account: str, waiting: Iterable[Flow]) -> bool:
        """Forget an account without sequences; return whether nothing is left of it.

        Service above the others' is kept; otherwise the account could come back without it.
        """
        for flow in [flow for flow in self._counters if flow[1] == account]:
            if self._last.get(flow[0]) != account and self._counters[flow] <= self._floor(flow[0], waiting):
                del self._counters[flow]
        if any(flow[1] == account for flow in self._counters):
            return False
        self._work.pop(account, None)
        return True

    def quit(self, flow: Flow) -> None:
        """Remove a flow that no longer waits."""
        self._last[flow[0]] = flow[1]

    def charge_prompt(self, flow: Flow, tokens: int, work: int = SCALE) -> None:
        """Charge a starting sequence for its prompt tokens to compute. ``work``: of one, in parts of ``SCALE``."""
        self._charge(flow, tokens * self._input, work)

    def charge_answer(self, flow: Flow, tokens: int, work: int = SCALE) -> None:
        """Charge a sequence for tokens computed after its start."""
        self._charge(flow, tokens * self._output, work)

    def finish_tag(self, flow: Flow, tokens: int, work: int = SCALE) -> int:
        """Return the counter of a flow once it has been charged for ``tokens`` more."""
        return self.counter(flow) + tokens * self._output * (work // self._weight(flow[1]))

    def _weight(self, account: str) -> int:
        return self._weights.get(account) or self._weights.get(EVERYBODY, 1)

    def _charge(self, flow: Flow, cost: int, work: int) -> None:
        account = flow[1]
        self._counters[flow] = self._counters.get(flow, 0) + cost * (work // self._weight(account))
        self._work[account] = self._work.get(account, 0) + cost * work

    def fork(self) -> FairShare:
        copy = FairShare(self._weights, self._input, self._output)
        copy._counters = self._counters.copy()
        copy._last = self._last.copy()
        copy._work = self._work.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "weights": self._weights.copy(),
            "costs": [self._input, self._output],
            "counters": [[*flow, counter] for flow, counter in self._counters.items()],
            "last": [[number, account] for number, account in self._last.items()],
            "work": self._work.copy(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> FairShare:
        share = cls(data["weights"], data["costs"][0], data["costs"][1])
        share._counters = {(entry[0], entry[1]): entry[2] for entry in data["counters"]}
        share._last = {entry[0]: entry[1] for entry in data["last"]}
        share._work = dict(data["work"])
        return share

    def check(self, waiting: Iterable[Flow]) -> None:
        """Raise AssertionError unless every flow that waits, or waited last, has a counter of at least 0."""
        assert self._counters.keys() >= set(waiting), "an account waits without a counter"
        assert self._counters.keys() >= set(self._last.items()), "the last account to wait has no counter"
        assert all(counter >= 0 for counter in [*self._counters.values(), *self._work.values()]), "a counter fell"

"""Fair share: a virtual token counter for each account says whose sequence starts next, against starvation.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2. A counter grows by the cost of what
its account's sequences compute, divided by the account's weight: prompt tokens when a sequence starts, but for those that
the prefix cache has (so the first user of a shared page pays for it), and generated tokens page by page. The account with
the least counter starts next. One that begins to wait is lifted to the least counter of those that wait already, or to that
of the one that waited last: nobody saves up service while idle.

Counters are whole numbers, so that the order in which costs are added changes nothing: jumps and stepping agree. A position
is paid for once, however often it is computed: a preempted account does not pay for what it has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..plain import Plain

Flow = tuple[int, str]  # class (``requests/urgency.py``: shared_class), account
EVERYBODY = "*"  # the weight of accounts that have none of their own
SCALE = 1 << 20  # counter of one token at cost and weight 1: weights divide it with little error


class FairShare:
    """See the module. An account has a counter in each shared class that it uses."""

    def __init__(self, weights: Mapping[str, int], input_cost: int, output_cost: int) -> None:
        self._weights, self._input, self._output = dict(weights), input_cost, output_cost
        self._counters: dict[Flow, int] = {}
        self._last: dict[int, str] = {}  # class -> the account that was the last to wait
        self.served: dict[str, int] = {}  # by account: cost of all it was given, whatever its weight

    def counter(self, flow: Flow) -> int:
        """What the flow has been given, by its weight."""
        return self._counters.get(flow, 0)

    def join(self, flow: Flow, waiting: Iterable[Flow]) -> None:
        """The flow begins to wait, beside these."""
        self._counters[flow] = max(self._counters.get(flow, 0), self._floor(flow[0], waiting))

    def _floor(self, number: int, waiting: Iterable[Flow]) -> int:
        """What a flow of this class begins with beside these."""
        floor = min((self._counters[other] for other in waiting if other[0] == number), default=-1)
        if floor < 0 and (last := self._last.get(number)) is not None:
            floor = self._counters[number, last]
        return max(floor, 0)

    def forget(self, account: str, waiting: Iterable[Flow]) -> bool:
        """Whether nothing is left of an account without sequences. What it was given above others is kept: it would come
        back without it."""
        for flow in [flow for flow in self._counters if flow[1] == account]:
            if self._last.get(flow[0]) != account and self._counters[flow] <= self._floor(flow[0], waiting):
                del self._counters[flow]
        if any(flow[1] == account for flow in self._counters):
            return False
        self.served.pop(account, None)
        return True

    def quit(self, flow: Flow) -> None:
        """The flow waits for nothing any more."""
        self._last[flow[0]] = flow[1]

    def charge_prompt(self, flow: Flow, tokens: int) -> None:
        """A sequence starts that has to compute so many tokens."""
        self._charge(flow, tokens * self._input)

    def charge_answer(self, flow: Flow, tokens: int) -> None:
        """A sequence has computed so many tokens beyond those it started with."""
        self._charge(flow, tokens * self._output)

    def _charge(self, flow: Flow, cost: int) -> None:
        account = flow[1]
        weight = self._weights.get(account) or self._weights.get(EVERYBODY, 1)
        self._counters[flow] = self._counters.get(flow, 0) + cost * (SCALE // weight)
        self.served[account] = self.served.get(account, 0) + cost

    def fork(self) -> FairShare:
        copy = FairShare(self._weights, self._input, self._output)
        copy._counters, copy._last, copy.served = self._counters.copy(), self._last.copy(), self.served.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "weights": self._weights.copy(),
            "costs": [self._input, self._output],
            "counters": [[*flow, counter] for flow, counter in self._counters.items()],
            "last": [[number, account] for number, account in self._last.items()],
            "served": self.served.copy(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> FairShare:
        share = cls(data["weights"], data["costs"][0], data["costs"][1])
        share._counters = {(entry[0], entry[1]): entry[2] for entry in data["counters"]}
        share._last = {entry[0]: entry[1] for entry in data["last"]}
        share.served = dict(data["served"])
        return share

    def check(self, waiting: Iterable[Flow]) -> None:
        """Every flow that waits, or was the last to, has a counter; none fell."""
        assert self._counters.keys() >= set(waiting), "an account waits without a counter"
        assert self._counters.keys() >= set(self._last.items()), "the last account to wait has no counter"
        assert all(counter >= 0 for counter in [*self._counters.values(), *self.served.values()]), "a counter fell"

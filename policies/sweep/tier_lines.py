"""Weighted fair queuing between the tiers of a family, within one account.

Accounts come first: which account starts next, and with which of its models, is decided without regard to tiers
(``sequence_queue.py``). If that is a tier of a family, the tiers of the same family compete for the start: of those whose
first sequence has the same service class, the one with the least virtual counter goes. Counters are those of
``fair_share.py``, with the weights of tiers; they grow by work, so that a lower tier's token costs less.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from ..model.tier_work import FamilyTier
from ..plain import Plain
from ..requests.urgency import service_class
from .fair_share import FairShare

Key = tuple[int, float, int]  # as in ``sequence_queue.py``
Group = tuple[int, str, str]  # class between accounts, account, family


class TierLines:
    """The waiting lines of tiers, by account and family, and the counters of tiers."""

    def __init__(self, weights: Mapping[str, int], input_cost: int, output_cost: int) -> None:
        self._weights = dict(weights)
        self._input = input_cost
        self._output = output_cost
        self._shares: dict[Group, FairShare] = {}
        self._lines: dict[Group, dict[str, list[Key]]] = {}  # by model id; none is empty
        self._of: dict[int, tuple[Group, str]] = {}  # sequence that waits -> its line

    def __bool__(self) -> bool:
        return bool(self._lines)

    def push(self, number: int, account: str, tier: FamilyTier, key: Key) -> None:
        """Add a sequence that waits. ``number``: its class between accounts."""
        group = number, account, tier.family
        lines = self._lines.setdefault(group, {})
        if tier.model not in lines:
            self._share(group).join((0, tier.model), [(0, model) for model in lines])
            lines[tier.model] = []
        insort(lines[tier.model], key)
        self._of[key[2]] = group, tier.model

    def remove(self, key: Key) -> None:
        """Remove a sequence that waits no more. No-op if it has no tier."""
        if key[2] not in self._of:
            return
        group, model = self._of.pop(key[2])
        lines = self._lines[group]
        del lines[model][bisect_left(lines[model], key)]
        if not lines[model]:
            del lines[model]
            self._shares[group].quit((0, model))
        if not lines:
            del self._lines[group]

    def first(self, key: Key) -> int:
        """Return the sequence that starts in the place of the one with this key, the first of its account."""
        if key[2] not in self._of:
            return key[2]
        group, asked = self._of[key[2]][0], service_class(key[0])
        share, lines = self._shares[group], self._lines[group]
        ranked = [
            (share.counter((0, model)), keys[0]) for model, keys in lines.items() if service_class(keys[0][0]) == asked
        ]
        return min(ranked)[1][2]

    def finish_tag(self, number: int, account: str, tier: FamilyTier, tokens: int) -> int:
        """Return the counter of a tier once it has been charged for ``tokens`` more."""
        return self._share((number, account, tier.family)).finish_tag((0, tier.model), tokens, tier.work)

    def charge_prompt(self, number: int, account: str, tier: FamilyTier, tokens: int) -> None:
        """Charge the start of a sequence."""
        self._share((number, account, tier.family)).charge_prompt((0, tier.model), tokens, tier.work)

    def charge_answer(self, number: int, account: str, tier: FamilyTier, tokens: int) -> None:
        """Charge the progress of a sequence."""
        self._share((number, account, tier.family)).charge_answer((0, tier.model), tokens, tier.work)

    def _share(self, group: Group) -> FairShare:
        if group not in self._shares:
            self._shares[group] = FairShare(self._weights, self._input, self._output)
        return self._shares[group]

    @property
    def served(self) -> dict[str, int]:
        """The total cost of each tier, over all accounts."""
        found: dict[str, int] = {}
        for share in self._shares.values():
            for model, cost in share.served.items():
                found[model] = found.get(model, 0) + cost
        return found

    def forget(self, name: str) -> None:
        """Forget the counters of an account, or those of a family, that is served no more and where nothing waits."""
        for group in [group for group in self._shares if name in group[1:] and group not in self._lines]:
            del self._shares[group]

    def fork(self) -> TierLines:
        copy = TierLines(self._weights, self._input, self._output)
        copy._shares = {group: share.fork() for group, share in self._shares.items()}
        copy._lines = {g: {model: keys.copy() for model, keys in lines.items()} for g, lines in self._lines.items()}
        copy._of = self._of.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "weights": self._weights.copy(),
            "costs": [self._input, self._output],
            "shares": [[list(group), share.snapshot()] for group, share in self._shares.items()],
            "lines": [
                [list(group), [[model, [list(key) for key in keys]] for model, keys in lines.items()]]
                for group, lines in self._lines.items()
            ],
            "of": [[s, list(group), model] for s, (group, model) in self._of.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> TierLines:
        made = cls(data["weights"], data["costs"][0], data["costs"][1])
        made._shares = {(g[0], g[1], g[2]): FairShare.restore(share) for g, share in data["shares"]}
        for g, lines in data["lines"]:
            group = (g[0], g[1], g[2])
            made._lines[group] = {model: [(key[0], key[1], key[2]) for key in keys] for model, keys in lines}
        made._of = {s: ((g[0], g[1], g[2]), model) for s, g, model in data["of"]}
        return made

    def check(self, waiting: Mapping[int, tuple[int, str, FamilyTier, Key]]) -> None:
        """Raise AssertionError unless the lines hold exactly these sequences: class, account, tier and key of each."""
        lines: dict[Group, dict[str, list[Key]]] = {}
        for number, account, tier, key in sorted(waiting.values(), key=lambda one: one[3]):
            lines.setdefault((number, account, tier.family), {}).setdefault(tier.model, []).append(key)
        assert self._lines == lines, "a line of a tier is out of order, or has lost a sequence"
        found = {s: ((number, account, tier.family), tier.model) for s, (number, account, tier, _) in waiting.items()}
        assert self._of == found, "a sequence with a tier is in no line"
        for group, share in self._shares.items():
            share.check([(0, model) for model in self._lines.get(group, {})])

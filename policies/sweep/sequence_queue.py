"""The two orders of a worker's sequences: the waiting queue, and the running sequences, oldest first.

The next to start is of the account with the least counter (``fair_share.py``), except that a class that asks to go after
all others' work goes last; within an account the order is by key, but for tiers of a family (``tier_lines.py``). A key is
(priority, arrival, sequence): lower priorities first, then earlier arrivals. A preempted sequence keeps its key, and so
returns to its old place. A key only changes when its sequence rises by a class while it waits (``ageing.py``). Offline
sequences are last in both orders, as their priority values are above all others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container

from ..model.tier_work import WHOLE, FamilyTier
from ..plain import Plain
from ..requests.urgency import FIRST_OFFLINE, OFFLINE, service_class, shared_class
from .ageing import Ageing
from .fair_share import FairShare, Flow
from .tier_lines import TierLines

Key = tuple[int, float, int]
Rank = tuple[int, int]  # (shared class, counter of the account): lower goes first


class SequenceQueue:
    """The two orders as sorted lists.

    Adding and removing looks at no other sequence; finding the first looks at one of each account.
    """

    def __init__(self, share: FairShare, tiers: TierLines | None = None, ageing: Ageing | None = None) -> None:
        self.share = share
        self.tiers = TierLines({}, 1, 1) if tiers is None else tiers
        self.ageing = Ageing() if ageing is None else ageing
        self._waiting: dict[Flow, list[Key]] = {}  # no list is empty
        self.waiting = 0  # number of sequences that wait to start
        self.offline_waiting = 0  # number of offline ones among them
        self._running_keys: list[Key] = []
        self.running: list[int] = []  # sequences of ``_running_keys``: those at home here; oldest first

    def first(self, without: Container[str] = ()) -> int:
        """Return the sequence that starts next, of accounts not in ``without``; -1: none."""
        if len(self._waiting) == 1 and not without:
            return self.tiers.first(next(iter(self._waiting.values()))[0])
        return self._first(without, 0)

    def first_offline(self, without: Container[str] = ()) -> int:
        """Return the same among offline sequences."""
        return self._first(without, OFFLINE)

    def _first(self, without: Container[str], least: int) -> int:
        ranked = [
            (flow[0], self.share.counter(flow), len(keys), keys[0])  # of equals, the account with fewer waiting sequences
            for flow, keys in self._waiting.items()
            if flow[1] not in without and flow[0] >= least
        ]
        return self.tiers.first(min(ranked)[3]) if ranked else -1

    @property
    def offline(self) -> bool:
        """True if any offline sequence runs or waits."""
        return self.offline_waiting > 0 or (len(self._running_keys) > 0 and self._running_keys[-1][0] >= FIRST_OFFLINE)

    @property
    def online(self) -> int:
        """The number of online sequences in ``running``; they come first."""
        keys = self._running_keys
        if not keys or keys[-1][0] < FIRST_OFFLINE:
            return len(keys)
        return bisect_left(keys, (FIRST_OFFLINE, float("-inf"), -1))

    @property
    def accounts(self) -> int:
        """The number of accounts with waiting sequences; each class of an account counts separately."""
        return len(self._waiting)

    def rank(self, key: Key, account: str) -> Rank:
        """Return the rank of a sequence among those of other accounts."""
        flow = _flow(key, account)
        return (flow[0], self.share.counter(flow))

    def push(self, key: Key, account: str, tier: FamilyTier | None = None, since: float = 0.0) -> None:
        """Add a sequence that waits for its start. ``since``: the time from which its wait in this class counts."""
        flow = _flow(key, account)
        if flow not in self._waiting:
            self.share.join(flow, self._waiting)
            self._waiting[flow] = []
        insort(self._waiting[flow], key)
        self.waiting += 1
        self.offline_waiting += flow[0] >= OFFLINE
        self.ageing.add(service_class(key[0]), key[2], since)
        if tier is not None:
            self.tiers.push(flow[0], account, tier, key)

    def remove(self, key: Key, account: str) -> None:
        """Remove a waiting sequence that starts, waits for something else, or leaves."""
        flow = _flow(key, account)
        keys = self._waiting[flow]
        del keys[_place(keys, key)]
        self.waiting -= 1
        self.offline_waiting -= flow[0] >= OFFLINE
        self.ageing.remove(service_class(key[0]), key[2])
        self.tiers.remove(key)
        if not keys:
            del self._waiting[flow]
            self.share.quit(flow)

    def charge_prompt(self, key: Key, account: str, tokens: int, tier: FamilyTier | None = None) -> None:
        """Charge the start of a sequence (see ``FairShare``)."""
        flow = _flow(key, account)
        self.share.charge_prompt(flow, tokens, WHOLE if tier is None else tier.work)
        if tier is not None:
            self.tiers.charge_prompt(flow[0], account, tier, tokens)

    def charge_answer(self, key: Key, account: str, tokens: int, tier: FamilyTier | None = None) -> None:
        """Charge the progress of a sequence (see ``FairShare``)."""
        flow = _flow(key, account)
        self.share.charge_answer(flow, tokens, WHOLE if tier is None else tier.work)
        if tier is not None:
            self.tiers.charge_answer(flow[0], account, tier, tokens)

    def finish_tag(self, key: Key, account: str, tier: FamilyTier | None, tokens: int) -> int:
        """Return the counter of a sequence's tier, or without one of its account, once ``tokens`` more are charged to it."""
        flow = _flow(key, account)
        if tier is None:
            return self.share.finish_tag(flow, tokens)
        return self.tiers.finish_tag(flow[0], account, tier, tokens)

    def start(self, key: Key) -> None:
        """Add a running sequence at home."""
        place = bisect_left(self._running_keys, key)
        self._running_keys.insert(place, key)
        self.running.insert(place, key[2])

    def stop(self, key: Key) -> None:
        """Remove a sequence that runs no more."""
        place = _place(self._running_keys, key)
        del self._running_keys[place], self.running[place]

    def forget(self, account: str) -> bool:
        """Forget an account without sequences (see ``FairShare``)."""
        self.tiers.forget(account)
        return self.share.forget(account, self._waiting)

    def fork(self) -> SequenceQueue:
        copy = SequenceQueue(self.share.fork(), self.tiers.fork(), self.ageing.fork())
        copy._waiting = {flow: keys.copy() for flow, keys in self._waiting.items()}
        copy.waiting = self.waiting
        copy._running_keys = self._running_keys.copy()
        copy.running = self.running.copy()
        copy.offline_waiting = self.offline_waiting
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "share": self.share.snapshot(),
            "tiers": self.tiers.snapshot(),
            "ageing": self.ageing.snapshot(),
            "waiting": [[*flow, [list(key) for key in keys]] for flow, keys in self._waiting.items()],
            "running": [list(key) for key in self._running_keys],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> SequenceQueue:
        queue = cls(FairShare.restore(data["share"]), TierLines.restore(data["tiers"]), Ageing.restore(data["ageing"]))
        for number, account, keys in data["waiting"]:
            queue._waiting[number, account] = [(key[0], key[1], key[2]) for key in keys]
            queue.waiting += len(keys)
            queue.offline_waiting += len(keys) * (number >= OFFLINE)
        queue._running_keys = [(key[0], key[1], key[2]) for key in data["running"]]
        queue.running = [key[2] for key in queue._running_keys]
        return queue

    def check(self, waiting: list[tuple[Key, str]], running: list[Key], tiers: dict[int, FamilyTier] | None = None) -> None:
        """Raise AssertionError unless both orders hold exactly the given sequences.

        ``waiting``: with their accounts. ``tiers``: the tier of each sequence that has one.
        """
        flows: dict[Flow, list[Key]] = {}
        for key, account in sorted(waiting):
            flows.setdefault(_flow(key, account), []).append(key)
        assert self._waiting == flows, "the waiting queue is out of order, or has lost a sequence"
        offline = sum(key[0] >= FIRST_OFFLINE for key, _ in waiting)
        assert (self.waiting, self.offline_waiting) == (len(waiting), offline), "waiting sequences are counted wrongly"
        assert self._running_keys == sorted(running), "the running order is wrong, or has lost a sequence"
        assert self.running == [key[2] for key in self._running_keys], "running sequences and their keys differ"
        self.share.check(self._waiting)
        self.ageing.check({key[2]: service_class(key[0]) for key, _ in waiting})
        known = tiers or {}
        lines = {k[2]: (_flow(k, account)[0], account, known[k[2]], k) for k, account in waiting if k[2] in known}
        self.tiers.check(lines)


def _flow(key: Key, account: str) -> Flow:
    return (shared_class(key[0]) if key[0] else 0, account)


def _place(keys: list[Key], key: Key) -> int:
    place = bisect_left(keys, key)
    assert place < len(keys), "a queue has lost a sequence"
    assert keys[place] == key, "a queue has lost a sequence"
    return place

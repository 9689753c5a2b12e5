"""The drop planner: merges replicas into pipelines when KV memory runs out, the smallest groups first.

After KunServe, section on the drop plan. Every group holds one whole copy of its model, so each merge of two groups frees
one copy of what both hold: of the layers that exist twice, each is kept by exactly one member. Smallest groups go first,
since latency grows with the number of stages. Of equal ones, the group that lacks most goes first, since memory freed
elsewhere does not help requests that wait there; then the one that frees most. Partners are chosen by the best link.
Members keep a part of what they hold and load nothing. A group that holds more than its stages (a restore was aborted) is
trimmed first, which makes no pipeline longer.

A cut must leave more tokens of KV than the groups had, by ``GAIN``, and its slowest stage may take at most ``SLOWER``
times as long as in the fastest cut. Among these cuts the one that leaves most is taken: the waiting requests are only the
beginning of a burst, and a full pipeline cannot be cut anew. If there is none (too little is held twice, a
budget is below a stage, or one stage would hold all others back) a merge is refused, as it is across models and beyond the
largest group allowed. What is not freed is reported to the part that starts workers. Pure: equal arguments give equal
plans. docs/decisions/parameter-dropping.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..model.chain import Component, Hop
from .stages import cut

MOST = 4  # most members of a group: with more, a token takes too long
SLOWER = 1.15  # limit of the slowest stage, relative to the fastest cut
TRIES = 6  # bisection steps between the memory of that cut and the most
GAIN = 0.05  # least relative gain of KV tokens that is worth the longer pipeline


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A worker of a group: its stage, components ``first`` to ``last`` (exclusive), and the depths that it holds."""

    worker: str
    first: int
    last: int
    held: frozenset[int]
    budget: int  # bytes for parameters and KV

    @property
    def surplus(self) -> frozenset[int]:
        """The depths that it holds and another member computes."""
        return self.held - frozenset(range(self.first, self.last))


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Members that hold one model together, in the order of their stages; a replica is a group of one."""

    application: str
    members: tuple[GroupMember, ...]

    @property
    def name(self) -> str:
        return "+".join(member.worker for member in self.members)

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(Hop(member.worker, member.first, member.last) for member in self.members)

    def trimmed(self) -> ParameterGroup:
        """Return the group with nothing but its stages."""
        kept = [replace(m, held=frozenset(range(m.first, m.last))) for m in self.members]
        return replace(self, members=tuple(kept))


@dataclass(frozen=True, slots=True)
class GroupDrop:
    """A merge of the groups ``of`` into ``group``. ``freed``: bytes by worker."""

    group: ParameterGroup
    of: tuple[ParameterGroup, ...]
    freed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DropPlan:
    """A plan. lacking: bytes that no drop frees. why: if any are lacking, a sentence for the part that starts workers."""

    drops: tuple[GroupDrop, ...]
    freed: int
    lacking: int = 0
    why: str = ""


def nbytes(components: Sequence[Component], depths: frozenset[int] | range) -> int:
    """Return the bytes of parameters of the components at these depths."""
    return sum(components[depth].nbytes + components[depth].delta_nbytes for depth in depths)


def kv_bytes(components: Sequence[Component], first: int, last: int) -> int:
    """Return the bytes of KV of one position in the layers among these components."""
    return sum(c.kv.raw_bytes // c.kv.page_size for c in components[first:last] if c.kv is not None)


def capacity(group: ParameterGroup, components: Sequence[Component]) -> int:
    """Return the tokens of KV: the least of its stages with KV. Negative: a stage has no room for its parameters."""
    rooms = []
    for member in group.members:
        left, each = member.budget - nbytes(components, member.held), kv_bytes(components, member.first, member.last)
        rooms.append(left // each if each else min(left, 0) or 1 << 62)
    return min(rooms)


class DropPlanner:
    """The planner for the models ``chains`` (application -> components).

    Args:
        seconds: application -> time of each component (``stages.component_seconds``).
        bandwidth: of the link between two workers, in bytes per second.
        most: members of a group.
    """

    def __init__(
        self,
        chains: Mapping[str, Sequence[Component]],
        seconds: Mapping[str, Sequence[float]],
        *,
        bandwidth: Callable[[str, str], float] = lambda sender, receiver: 0.0,
        max_members: int = MOST,
    ) -> None:
        self._chains = chains
        self._seconds = seconds
        self._bandwidth = bandwidth
        self._max_members = max_members

    def plan(self, groups: Sequence[ParameterGroup], needed: int, lacking: Mapping[str, int] | None = None) -> DropPlan:
        """Return a plan that frees ``needed`` bytes, or as many as possible.

        ``lacking``: the part that each group lacks, by name.
        """
        drafts, refused = [_Draft(group, (group,), (lacking or {}).get(group.name, 0)) for group in groups], set[str]()
        for draft in drafts:
            if self._freed(drafts) < needed:
                draft.group = draft.group.trimmed()
        rest = list(drafts)
        while self._freed(drafts) < needed and rest:
            one = min(rest, key=self._order)
            rest.remove(one)
            for other in sorted(rest, key=lambda draft: self._partner(one, draft)):
                if (merged := self._merge(one.group, other.group, refused)) is not None:
                    rest.remove(other)
                    drafts = [draft for draft in drafts if draft is not one and draft is not other]
                    drafts.append(_Draft(merged, one.of + other.of, one.lacking + other.lacking, (one.group, other.group)))
                    rest.append(drafts[-1])
                    break
        for draft in drafts:
            if draft.pair is not None:
                draft.group = _joined(*draft.pair, self._stages(*draft.pair, largest=True))
        freed = self._freed(drafts)
        drops = [GroupDrop(draft.group, draft.of, self._freed_by(draft)) for draft in drafts if draft.of != (draft.group,)]
        left = max(needed - freed, 0)
        united = len(drafts) == 1 and len(drafts[0].group.members) > 1
        alone = "there is no second instance that holds the same parameters"
        why = "; ".join(sorted(refused)) or ("all that hold these parameters are one pipeline already" if united else alone)
        return DropPlan(tuple(drops), freed, left, why if left else "")

    def _freed_by(self, draft: _Draft) -> dict[str, int]:
        """Return the freed bytes, by worker."""
        chain = self._chains[draft.group.application]
        before = {member.worker: nbytes(chain, member.held) for group in draft.of for member in group.members}
        return {member.worker: before[member.worker] - nbytes(chain, member.held) for member in draft.group.members}

    def _freed(self, drafts: Sequence[_Draft]) -> int:
        return sum(sum(self._freed_by(draft).values()) for draft in drafts)

    def _order(self, draft: _Draft) -> tuple[int, int, int, str]:
        """Return the sort key of groups: smallest first, then the one that lacks most, then the one that frees most."""
        group, chain = draft.group, self._chains[draft.group.application]
        return len(group.members), -draft.lacking, -nbytes(chain, range(group.members[-1].last)), group.name

    def _partner(self, one: _Draft, other: _Draft) -> tuple[int, float, int, str]:
        """Return the sort key of partners: smallest first, then the best link, then the one that lacks most.

        Between two groups, the slowest of their members' links counts.
        """
        pairs = [(a.worker, b.worker) for a in one.group.members for b in other.group.members]
        slowest = min(self._bandwidth(sender, receiver) for a, b in pairs for sender, receiver in ((a, b), (b, a)))
        return len(other.group.members), -slowest, -other.lacking, other.group.name

    def _merge(self, one: ParameterGroup, other: ParameterGroup, refused: set[str]) -> ParameterGroup | None:
        """Return both groups as one pipeline; None, with the reason in ``refused``, if that would not serve more."""
        if one.application != other.application:
            refused.add("instances of different models share no parameters")
            return None
        if len(one.members) + len(other.members) > self._max_members:
            refused.add(f"a group has {self._max_members} members at most")
            return None
        if not (stages := self._stages(one, other)):
            first, second = sorted((one.name, other.name))
            refused.add(f"{first} and {second} share too little to have more KV as one pipeline")
            return None
        return _joined(one, other, stages)

    def _stages(self, one: ParameterGroup, other: ParameterGroup, *, largest: bool = False) -> list[tuple[int, int]]:
        """Return the fastest cut with room for enough more tokens than both groups had.

        ``largest``: instead the cut with room for most, as long as it is little slower.
        """
        chain, seconds = self._chains[one.application], self._seconds[one.application]
        bodies = [0, *accumulate(c.nbytes + c.delta_nbytes for c in chain)]
        caches = [0, *accumulate(kv_bytes(chain, depth, depth + 1) for depth in range(len(chain)))]
        budgets = [member.budget for member in (*one.members, *other.members)]
        held = [member.held for member in one.members], [member.held for member in other.members]
        had = capacity(one.trimmed(), chain) + capacity(other.trimmed(), chain)

        def room(place: int, first: int, last: int) -> float:
            each = caches[last] - caches[first]
            return (budgets[place] - (bodies[last] - bodies[first])) / each if each > 0 else -1.0

        def tried(tokens: float) -> list[tuple[int, int]]:
            return cut(*held, seconds, lambda place, first, last: room(place, first, last) >= max(tokens, 0.0))

        def slowest(stages: list[tuple[int, int]]) -> float:
            firsts = [0, *(behind for _, behind in stages)]
            return max(sum(seconds[a:b]) for a, (_, b) in zip(firsts, stages, strict=False))

        best = tried(low := (1 + GAIN) * had)
        if not best or not largest:
            return best
        limit, tokens = (
            SLOWER * slowest(best),
            (sum(budgets) - bodies[-1]) / max(caches[-1], 1),
        )  # as if layers were divisible
        high = tokens
        for _ in range(TRIES):
            if tokens <= low:
                break
            found = tried(tokens)
            if found and slowest(found) <= limit:
                best, low = found, tokens
            else:
                high = tokens
            tokens = high if low >= high else (low + high) / 2
        return best


@dataclass(slots=True)
class _Draft:
    """A planned group, the groups it is made of, the bytes they lack, and the two that were merged last."""

    group: ParameterGroup
    of: tuple[ParameterGroup, ...]
    lacking: int
    pair: tuple[ParameterGroup, ParameterGroup] | None = None


def _joined(one: ParameterGroup, other: ParameterGroup, stages: Sequence[tuple[int, int]]) -> ParameterGroup:
    """Return their members with these stages (``stages.cut``), and only the parameters for them."""
    members, firsts = (*one.members, *other.members), [0, *(behind for _, behind in stages)]
    found = [
        replace(members[n], first=first, last=behind, held=frozenset(range(first, behind)))
        for first, (n, behind) in zip(firsts, stages, strict=False)
    ]
    return ParameterGroup(one.application, tuple(found))

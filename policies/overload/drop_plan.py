"""Which parameters go when KV memory runs out: replicas are merged into pipelines, smallest groups first.

After KunServe, section on the drop plan. Every group holds one whole copy of its model, so each merge of two groups frees
one copy of what both hold: of the layers that exist twice, each is kept by exactly one member. Smallest groups first, for
latency grows with the number of stages; of equal ones those that lack most, for what is freed elsewhere helps nobody who
waits there, then those that free most; partners by the best link. Members keep a part of what they hold and load nothing. A
group that holds more than its stages (a restore was broken off) is trimmed first, which makes no pipeline longer.

Among the cuts that leave more tokens of KV than the groups had, by ``GAIN``, and whose slowest stage takes ``SLOWER`` times
as long at most as that of the fastest, the one that leaves most: what waits is only the beginning of a burst, and a pipeline
that is full cannot be cut anew (decision 58). Where there is none (too little is held twice, a budget is below a
stage, or one stage would hold all others back) a merge is refused, as it is across models and beyond the largest group that
is wanted. What is not freed is told to whoever starts workers.

Pure: the first call and the second with the same arguments give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..model.chain import Component, Hop
from .stages import cut

MOST = 4  # members of a group: with more of them a token takes too long
SLOWER = 1.15  # than the slowest stage of the cut by time
TRIES = 6  # to halve what lies between the memory of that cut and the most
GAIN = 0.05  # by which a merge has to raise the tokens of KV at least, to be worth the longer pipeline


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
        """Held, and another member's to compute."""
        return self.held - frozenset(range(self.first, self.last))


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Members, in the order of their stages, that hold one model together; a replica is a group of one."""

    application: str
    members: tuple[GroupMember, ...]

    @property
    def name(self) -> str:
        return "+".join(member.worker for member in self.members)

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(Hop(member.worker, member.first, member.last) for member in self.members)

    def trimmed(self) -> ParameterGroup:
        """With nothing but its stages."""
        kept = [replace(m, held=frozenset(range(m.first, m.last))) for m in self.members]
        return replace(self, members=tuple(kept))


def replica(application: str, worker: str, components: Sequence[Component], budget: int) -> ParameterGroup:
    """A worker with the whole chain, as a group of one."""
    end = len(components)
    return ParameterGroup(application, (GroupMember(worker, 0, end, frozenset(range(end)), budget),))


@dataclass(frozen=True, slots=True)
class GroupDrop:
    """``group``: what comes of the groups ``of``; ``freed``: bytes by worker."""

    group: ParameterGroup
    of: tuple[ParameterGroup, ...]
    freed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DropPlan:
    """``lacking``: bytes that no drop frees; ``why``: a sentence then, for whoever starts workers."""

    drops: tuple[GroupDrop, ...]
    freed: int
    lacking: int = 0
    why: str = ""


def nbytes(components: Sequence[Component], depths: frozenset[int] | range) -> int:
    """Parameters of the components at these depths."""
    return sum(components[depth].nbytes + components[depth].delta_nbytes for depth in depths)


def kv_bytes(components: Sequence[Component], first: int, last: int) -> int:
    """Of a position, in the layers among these components."""
    return sum(c.kv.raw_bytes // c.kv.page_size for c in components[first:last] if c.kv is not None)


def capacity(group: ParameterGroup, components: Sequence[Component]) -> int:
    """Tokens of KV: the least of its stages with KV. Negative: a stage has no room for its parameters."""
    rooms = []
    for member in group.members:
        left, each = member.budget - nbytes(components, member.held), kv_bytes(components, member.first, member.last)
        rooms.append(left // each if each else min(left, 0) or 1 << 62)
    return min(rooms)


class DropPlanner:
    """Makes plans for the models ``chains`` (application -> components).

    Args:
        seconds: application -> what each component takes (``stages.component_seconds``).
        bandwidth: of the link between two workers, bytes per second.
        most: members of a group.
    """

    def __init__(
        self,
        chains: Mapping[str, Sequence[Component]],
        seconds: Mapping[str, Sequence[float]],
        *,
        bandwidth: Callable[[str, str], float] = lambda sender, receiver: 0.0,
        most: int = MOST,
    ) -> None:
        self._chains, self._seconds, self._bandwidth, self._most = chains, seconds, bandwidth, most

    def plan(self, groups: Sequence[ParameterGroup], needed: int, lacking: Mapping[str, int] | None = None) -> DropPlan:
        """Free ``needed`` bytes, or as many as can be. ``lacking``: how many of them which group lacks, by name."""
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
                draft.group = _joined(*draft.pair, self._stages(*draft.pair, most=True))
        freed = self._freed(drafts)
        drops = [GroupDrop(draft.group, draft.of, self._freed_by(draft)) for draft in drafts if draft.of != (draft.group,)]
        left = max(needed - freed, 0)
        united = len(drafts) == 1 and len(drafts[0].group.members) > 1
        alone = "there is no second instance that holds the same parameters"
        why = "; ".join(sorted(refused)) or ("all that hold these parameters are one pipeline already" if united else alone)
        return DropPlan(tuple(drops), freed, left, why if left else "")

    def _freed_by(self, draft: _Draft) -> dict[str, int]:
        """Bytes, by worker."""
        chain = self._chains[draft.group.application]
        before = {member.worker: nbytes(chain, member.held) for group in draft.of for member in group.members}
        return {member.worker: before[member.worker] - nbytes(chain, member.held) for member in draft.group.members}

    def _freed(self, drafts: Sequence[_Draft]) -> int:
        return sum(sum(self._freed_by(draft).values()) for draft in drafts)

    def _order(self, draft: _Draft) -> tuple[int, int, int, str]:
        """Smallest first, then who lacks most, then what frees most."""
        group, chain = draft.group, self._chains[draft.group.application]
        return len(group.members), -draft.lacking, -nbytes(chain, range(group.members[-1].last)), group.name

    def _partner(self, one: _Draft, other: _Draft) -> tuple[int, float, int, str]:
        """Smallest first, then the best link: of those between their members the slowest counts; then who lacks most."""
        pairs = [(a.worker, b.worker) for a in one.group.members for b in other.group.members]
        slowest = min(self._bandwidth(sender, receiver) for a, b in pairs for sender, receiver in ((a, b), (b, a)))
        return len(other.group.members), -slowest, -other.lacking, other.group.name

    def _merge(self, one: ParameterGroup, other: ParameterGroup, refused: set[str]) -> ParameterGroup | None:
        """Both as one pipeline; None where that would not serve more, with the reason in ``refused``."""
        if one.application != other.application:
            refused.add("instances of different models share no parameters")
            return None
        if len(one.members) + len(other.members) > self._most:
            refused.add(f"a group has {self._most} members at most")
            return None
        if not (stages := self._stages(one, other)):
            first, second = sorted((one.name, other.name))
            refused.add(f"{first} and {second} share too little to have more KV as one pipeline")
            return None
        return _joined(one, other, stages)

    def _stages(self, one: ParameterGroup, other: ParameterGroup, *, most: bool = False) -> list[tuple[int, int]]:
        """The fastest cut with room for enough more tokens than both groups had; ``most``: that with room for most, as far
        as it takes little longer."""
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
        if not best or not most:
            return best
        limit, tokens = SLOWER * slowest(best), (sum(budgets) - bodies[-1]) / max(caches[-1], 1)  # were layers no units
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
    """A group as it is to be, those that it is made of, the bytes that they lack, and the two that were merged last."""

    group: ParameterGroup
    of: tuple[ParameterGroup, ...]
    lacking: int
    pair: tuple[ParameterGroup, ParameterGroup] | None = None


def _joined(one: ParameterGroup, other: ParameterGroup, stages: Sequence[tuple[int, int]]) -> ParameterGroup:
    """Their members with these stages (``stages.cut``), and no more than they need for them."""
    members, firsts = (*one.members, *other.members), [0, *(behind for _, behind in stages)]
    found = [
        replace(members[n], first=first, last=behind, held=frozenset(range(first, behind)))
        for first, (n, behind) in zip(firsts, stages, strict=False)
    ]
    return ParameterGroup(one.application, tuple(found))

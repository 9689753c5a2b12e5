"""Random clusters of replicas, and what must hold after each plan over them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.policies.overload.drop_plan import (
    GAIN,
    DropPlan,
    DropPlanner,
    GroupMember,
    ParameterGroup,
    capacity,
    kv_bytes,
    nbytes,
)
from blockwright.policies.overload.stages import component_seconds
from blockwright.policies.plan.coefficients import Coefficients

COSTS = Coefficients(base=0.01, read=0.02, token=0.0001, row=0.00001, context=1e-8)


def chain(layers: int, *, layer: int = 600, embedding: int = 100, head: int = 100, kv: int = 8) -> list[Component]:
    """Attention and feed-forward components of ``layers`` layers; ``kv``: bytes of a position in each."""
    found = [Component(b"e", Kind.EMBEDDING, embedding, 0, 1)]
    for n in range(layers):
        found.append(Component(b"a%d" % n, Kind.ATTENTION, layer // 3, 1, 1, KvLayout(1, kv // 4, "bfloat16", 16)))
        found.append(Component(b"m%d" % n, Kind.MLP, layer - layer // 3, 1, 1))
    return [*found, Component(b"h", Kind.HEAD, head, 1, 1)]


def replica(application: str, worker: str, components: Sequence[Component], budget: int) -> ParameterGroup:
    """Return a worker with the whole chain as a group of one."""
    end = len(components)
    return ParameterGroup(application, (GroupMember(worker, 0, end, frozenset(range(end)), budget),))


def drawn(source: random.Random) -> tuple[dict[str, list[Component]], list[ParameterGroup]]:
    """One to three models of 4 to 12 layers on 2 to 10 workers, whose budgets hold their model and more."""
    chains, groups = {}, []
    for n in range(source.randint(1, 3)):
        sizes = {name: source.choice([0, 50, 100, 900]) for name in ("embedding", "head")}
        chains[f"m{n}"] = chain(source.randint(4, 12), layer=source.choice([300, 600]), **sizes)
    for n in range(source.randint(2, 10)):
        name = source.choice(list(chains))
        whole = nbytes(chains[name], range(len(chains[name])))
        groups.append(replica(name, f"w{n}", chains[name], whole + source.randint(1, 3 * whole)))
    return chains, groups


def planner(
    chains: dict[str, list[Component]], *, max_members: int = 4, links: dict[tuple[str, str], float] | None = None
) -> DropPlanner:
    seconds = {name: component_seconds(components, COSTS) for name, components in chains.items()}
    return DropPlanner(chains, seconds, max_members=max_members, bandwidth=lambda a, b: (links or {}).get((a, b), 1.0))


def applied(groups: Sequence[ParameterGroup], plan: DropPlan) -> list[ParameterGroup]:
    """All groups after a plan."""
    gone = {old.name for drop in plan.drops for old in drop.of}
    return [group for group in groups if group.name not in gone] + [drop.group for drop in plan.drops]


def check(chains: dict[str, list[Component]], before: Sequence[ParameterGroup], plan: DropPlan) -> None:
    """Each layer is computed by exactly one member of each group, who holds it; what goes is what was there twice; each
    stage has room; no group has less KV than those that it is made of."""
    after = applied(before, plan)
    assert sorted(m.worker for g in after for m in g.members) == sorted(m.worker for g in before for m in g.members)
    for group in after:
        components = chains[group.application]
        borders = [0, *(member.last for member in group.members)]
        assert [member.first for member in group.members] == borders[:-1], "the stages leave a gap"
        assert borders[-1] == len(components)
        for member in group.members:
            assert frozenset(range(member.first, member.last)) <= member.held, "a stage would have to be loaded"
            assert nbytes(components, member.held) < member.budget
            assert kv_bytes(components, member.first, member.last), "a stage has no KV"
    held = {m.worker: m.held for g in before for m in g.members}
    for drop in plan.drops:
        components, old = chains[drop.group.application], [m for g in drop.of for m in g.members]
        assert {g.application for g in drop.of} == {drop.group.application}
        assert all(m.held <= held[m.worker] for m in drop.group.members), "a member holds what it did not hold"
        twice = sum(nbytes(components, m.held) for m in old) - nbytes(components, range(len(components)))
        assert sum(drop.freed.values()) == twice, "what was there twice is not what was freed"
        before = sum(capacity(old.trimmed(), components) for old in drop.of)
        assert capacity(drop.group, components) >= before * (1 if len(drop.of) == 1 else 1 + GAIN) - 1
    assert plan.freed == sum(sum(drop.freed.values()) for drop in plan.drops)

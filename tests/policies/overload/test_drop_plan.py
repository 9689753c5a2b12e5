"""Drop plans: what must hold over random clusters, what is refused, which groups are merged first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.model.chain import Component
from blockwright.policies.overload.drop_plan import (
    SLOWER,
    GroupMember,
    ParameterGroup,
    capacity,
    nbytes,
)
from blockwright.policies.overload.stages import component_seconds

from .clusters import COSTS, applied, chain, check, drawn, planner, replica


def pipeline(name: str, workers: list[str], components: list[Component], cut: int, budget: int) -> ParameterGroup:
    """Of two stages, cut before the component ``cut``."""
    ranges = (0, cut), (cut, len(components))
    members = [GroupMember(w, a, b, frozenset(range(a, b)), budget) for w, (a, b) in zip(workers, ranges, strict=True)]
    return ParameterGroup(name, tuple(members))


def test_random_clusters() -> None:
    """Dropped once and once more, for any amount: parts of a model, exactly one, more than there is."""
    source = random.Random(1)
    merged = 0
    sizes = set()
    for _ in range(200):
        chains, groups = drawn(source)
        making = planner(chains, max_members=source.choice([2, 3, 4, 8]))
        for _ in range(2):
            needed = source.choice([1, 3000, 30000])
            plan = making.plan(groups, needed)
            check(chains, groups, plan)
            assert plan.freed + plan.lacking >= needed
            assert (plan.why != "") == (plan.lacking > 0), plan
            assert plan == making.plan(groups, needed), "equal clusters have equal plans"
            merged += len(plan.drops)
            groups = applied(groups, plan)
        sizes |= {len(group.members) for group in groups}
    assert merged > 200, "the clusters hardly ever drop anything"
    assert {2, 3, 4} <= sizes


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_stages_take_equal_time_head_included(members: int) -> None:
    """A head as heavy as four layers: the last stage has fewer of them."""
    components = chain(32, head=2400)
    groups = [replica("m", f"w{n}", components, 30_000) for n in range(members)]
    making = planner({"m": components}, max_members=members)
    plan = making.plan(groups, 1 << 40)
    (drop,) = plan.drops
    assert len(drop.group.members) == members
    seconds = component_seconds(components, COSTS)
    stages = [sum(seconds[m.first : m.last]) for m in drop.group.members]
    assert max(stages) <= 1.3 * sum(seconds) / members, stages
    last = drop.group.members[-1]
    assert last.last - last.first < min(m.last - m.first for m in drop.group.members[:-1])
    assert drop.group.hops[0].first == 0
    assert drop.group.name == "+".join(hop.worker for hop in drop.group.hops)


def test_stages_are_cut_for_memory_as_far_as_these_take_little_longer() -> None:
    """An embedding takes memory and no time: the cut by time leaves its stage more layers, and so less KV for each."""
    slower = []
    for embedding in (0, 1200, 2400):
        components = chain(32, embedding=embedding, head=1200)
        whole = nbytes(components, range(len(components)))
        groups = [replica("m", f"w{n}", components, 2 * whole) for n in range(2)]
        seconds, had = component_seconds(components, COSTS), sum(capacity(group, components) for group in groups)
        (drop,) = planner({"m": components}).plan(groups, 1).drops
        first, second = drop.group.members
        slowest = {end: max(sum(seconds[:end]), sum(seconds[end:])) for end in range(1, len(components))}
        assert slowest[first.last] <= SLOWER * min(slowest.values())
        for end in (n for n in slowest if slowest[n] <= SLOWER * min(slowest.values()) and components[n].kv is not None):
            stages = [(first, 0, end), (second, end, len(components))]
            members = [replace(m, first=a, last=b, held=frozenset(range(a, b))) for m, a, b in stages]
            room = capacity(replace(drop.group, members=tuple(members)), components)
            assert room <= 1.02 * capacity(drop.group, components), "another cut leaves more"
        assert capacity(drop.group, components) > 1.3 * had
        slower.append(slowest[first.last] / min(slowest.values()))
    assert slower == sorted(slower), "where memory and time ask for the same little is paid"


def test_no_more_than_is_needed_smallest_groups_first_by_the_best_link() -> None:
    components = chain(24)
    whole = nbytes(components, range(len(components)))
    groups = [replica("m", f"w{n}", components, 2 * whole) for n in range(5)]
    links = {(a, b): 9.0 for a in ("w0", "w3") for b in ("w0", "w3")}
    making = planner({"m": components}, links=links)
    one = making.plan(groups, 1)
    assert [drop.group.name for drop in one.drops] == ["w0+w3"], "the partner is the one with the best link"
    assert one.freed == whole
    two = making.plan(groups, whole + 1)
    assert sorted(drop.group.name for drop in two.drops) == ["w0+w3", "w1+w2"], "two short pipelines, not one of three"
    three = making.plan(groups, 2 * whole + 1)
    assert sorted(len(drop.group.members) for drop in three.drops) == [2, 3]
    assert three.freed == 3 * whole


def test_members_of_pipelines_keep_what_they_have() -> None:
    """Two pipelines with other cuts and a replica, merged: nobody loads anything."""
    components = chain(12)
    whole = nbytes(components, range(len(components)))
    making = planner({"m": components}, max_members=8)
    groups = [replica("m", f"w{n}", components, whole * (3 + n)) for n in range(5)]
    for needed in (1, whole + 1, 2 * whole + 1, 3 * whole + 1):
        plan = making.plan(groups, needed)
        check({"m": components}, groups, plan)
    pair = applied(groups, making.plan(groups, whole + 1))
    check({"m": components}, pair, making.plan(pair, 2 * whole))


def test_what_a_broken_off_restore_has_loaded_goes_first() -> None:
    components = chain(8)
    whole = nbytes(components, range(len(components)))
    making = planner({"m": components})
    groups = [replica("m", f"w{n}", components, 3 * whole) for n in range(4)]
    (drop,) = making.plan(groups, 1).drops
    first, second = drop.group.members
    loaded = replace(first, held=first.held | {first.last, first.last + 1})
    rest = [g for g in groups if g not in drop.of]
    now = [*rest, ParameterGroup("m", (loaded, second))]
    plan = making.plan(now, 1)
    assert [one.group for one in plan.drops] == [drop.group]
    assert plan.freed == nbytes(components, loaded.surplus) > 0
    check({"m": components}, now, plan)


def test_what_cannot_be_merged_is_said() -> None:
    components, other = chain(8), chain(6)
    whole = nbytes(components, range(len(components)))
    alone = planner({"m": components}).plan([replica("m", "w0", components, 2 * whole)], 10)
    assert (alone.drops, alone.freed, alone.lacking) == ((), 0, 10)
    assert alone.why == "there is no second instance that holds the same parameters"
    pair = [replica("m", f"w{n}", components, 2 * whole) for n in range(2)]
    (drop,) = (joined := planner({"m": components}).plan(pair, 1 << 40)).drops
    again = planner({"m": components}).plan([drop.group], 10)
    assert joined.why == again.why == "all that hold these parameters are one pipeline already"
    two = {"m": components, "n": other}
    mixed = planner(two).plan([replica("m", "w0", components, 2 * whole), replica("n", "w1", other, 2 * whole)], 10)
    assert mixed.drops == ()
    assert mixed.why == "instances of different models share no parameters"
    pair = [replica("m", f"w{n}", components, 3 * whole) for n in range(3)]
    capped = planner({"m": components}, max_members=2).plan(pair, 1 << 40)
    assert len(capped.drops) == 1
    assert capped.why == "a group has 2 members at most"
    first, second = (pipeline("m", [f"v{n}", f"w{n}"], components, 1, 3 * whole) for n in range(2))
    narrow = planner({"m": components}).plan([first, second], 10)
    assert narrow.drops == ()
    assert narrow.why == "v0+w0 and v1+w1 share too little to have more KV as one pipeline"


def test_a_cut_that_would_leave_less_kv_is_refused() -> None:
    """One member has hardly more than half of the model: as a stage it would hold the others back."""
    components = chain(4, embedding=0, head=0)
    whole = nbytes(components, range(len(components)))
    big, small = replica("m", "w0", components, 20 * whole), replica("m", "w1", components, whole + 40)
    plan = planner({"m": components}).plan([big, small], 1)
    assert plan.drops == ()
    assert plan.why == "w0 and w1 share too little to have more KV as one pipeline"
    assert capacity(big, components) > 0


def test_the_capacity_is_the_least_of_the_stages_that_have_kv() -> None:
    """A stage without KV limits nothing, unless its parameters do not fit: then no cut is possible."""
    parts = chain(2)
    each = nbytes(parts, range(1, 5)) + nbytes(parts, range(1))
    layers = GroupMember("w0", 0, 5, frozenset(range(5)), each + 159)
    head = GroupMember("w1", 5, 6, frozenset({5}), 100)
    assert capacity(ParameterGroup("m", (layers, head)), parts) == 159 // 16
    assert capacity(ParameterGroup("m", (layers, replace(head, budget=93))), parts) == -7

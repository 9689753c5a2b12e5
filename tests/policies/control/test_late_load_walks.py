"""Random drops, swaps, additions, deaths and lacks of room: everything is served in the end, and on all of its workers."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

import pytest

from blockwright.policies.cluster.demand import BURST_PATIENCE
from blockwright.policies.control.drop_events import (
    DropParameters,
    MemoryOrder,
    RestoreParameters,
)
from blockwright.policies.control.drop_groups import refusal, serving_groups
from blockwright.policies.control.events import Add, Effect, Event, Load, Quiet, Remove, WorkerDown, WorkerUp
from blockwright.policies.model.chain import Hop
from blockwright.tests.fake_cluster import KV, application, stay
from blockwright.tests.policies.control.test_on_demand_overload import Tight

TRIO = ("w0", "w1", "w2")
ADDED = application("x", "abcdeX", kv=KV)  # a fine-tune of ``a``


class Walk(Tight):
    """Steps that are drawn."""

    def __init__(self, source: Random) -> None:
        self.source = source
        super().__init__(*TRIO)

    def answers(self, effect: Effect) -> list[Event]:
        if isinstance(effect, Load):
            group = self.state.overload.group_of(effect.worker)
            alone = all(self.state.overload.group_of(name) or not self.state.workers[name].alive for name in TRIO)
            own = group is None or effect.load.holder in group.applications
            assert own or (alone and effect.load.holder != self.state.demand.coming), "it takes the memory of a burst"
        return super().answers(effect)

    def drawn(self) -> MemoryOrder:
        source, found = self.source, serving_groups(self.state)
        pairs = [(one, other) for one, other in permutations(found, 2) if one.application == other.application]
        name = source.choice([*self.state.overload.groups] or [""])
        if not pairs or source.random() < 0.3:
            restore: MemoryOrder = RestoreParameters(name, {})
            return source.choice([restore, restore, stay(self.state, name), stay(self.state, name)])
        one, other = source.choice(pairs)
        members = [member.worker for member in (*one.members, *other.members)]
        borders = sorted({0, 6, *source.sample(range(1, 6), len(members) - 1)})
        hops = tuple(Hop(w, a, b) for w, (a, b) in zip(members, pairwise(borders), strict=True))
        return DropParameters(one.application, hops)

    def step(self) -> None:
        source, name = self.source, self.source.choice("abx")
        self.tick(source.choice([0.03, 0.3, 3.0]))
        self.room = source.choice([6, 9, 12, 12, 13])
        match source.randrange(10):
            case 0 | 1 | 2 if not refusal(self.state, order := self.drawn()):
                self(order)
            case 3 | 4 if late := self.late:
                self.reply(late[source.randrange(len(late))])
            case 5 | 6 if name in self.state.served:
                self.want(name)
            case 7 if self.active.get(name):
                self.end(name)
                if self.state.demand.leaving == name and not self.active[name]:
                    self(Quiet(name))
            case 8 if source.random() < 0.3:
                self(Remove("x") if "x" in self.state.served else Add(ADDED))
            case 9 if source.random() < 0.2:
                self.die(source.choice(TRIO))

    def die(self, worker: str) -> None:
        self(WorkerDown(worker, self.state.workers[worker].incarnation, "killed"))
        self(WorkerUp(worker, self.state.workers[worker].last + 1))

    def settle(self) -> None:
        """The burst is over, and there is room for all."""
        self.active, self.room = {}, 20
        for _ in range(40):
            if self.state.demand.leaving:
                self(Quiet(self.state.demand.leaving))
            for one in self.late:
                self.reply(one)
            for name in [*self.state.overload.groups]:
                if not refusal(self.state, order := RestoreParameters(name, {})):
                    self(order)
            self.tick(BURST_PATIENCE)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_while_parameters_are_dropped_is_on_all_of_its_workers_in_the_end(seed: int) -> None:
    made = Walk(Random(seed))
    for _ in range(200):
        made.step()
    made.settle()
    assert (made.stage(), made.state.demand.coming, made.state.demand.leaving) == ("", "", "")
    for name in [*made.state.served]:
        made.want(name)
        made.end(name)
        made.tick(1.0)
    assert {route.partition("@")[0] for route in made.open()} == made.state.served.keys()
    assert made.state.whole
    assert not any(residency.late or residency.refused for residency in made.state.residency.values())
    assert (made.state.publication().on_demand, made.state.table.paused) == ([], set())

"""Random orders, late answers and deaths: what the controller makes of drops and restores, checked after each event."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from blockwright.policies.control.drop_events import (
    AwaitSwitched,
    DropParameters,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
)
from blockwright.policies.control.drop_groups import refusal, serving_groups
from blockwright.policies.control.dropped_group import GroupStage
from blockwright.policies.control.events import (
    Application,
    AskCapacity,
    KvCapacity,
    Load,
    Loaded,
    LoadRefused,
    Recheck,
    RecheckLater,
    WorkerUp,
)
from blockwright.policies.control.loads import NoCapacity
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.policies.model.chain import Hop
from blockwright.tests.fake_cluster import ROOM, stay
from blockwright.tests.policies.control.test_controller_overload import A, Burst
from blockwright.tests.policies.control.test_controller_together import TUNED


@pytest.mark.parametrize("served", [(A,), (A, TUNED)], ids=["one", "together"])
@pytest.mark.parametrize("seed", range(20))
def test_walks_of_random_news_end_whole(seed: int, served: tuple[Application, ...]) -> None:
    """Orders, answers that are late or never come, deaths: invariants after each, and replicas in the end."""
    source, burst = random.Random(seed), Burst("w0", "w1", "w2", "w3", served=served)
    burst.manual = True
    asked: list[Any] = []

    def step(effects: list[Any]) -> None:
        asked.extend(e for e in effects if isinstance(e, Load | AskCapacity | SwitchRoutes | AwaitSwitched | RecheckLater))

    def answer(now: float) -> None:
        effect = asked.pop(source.randrange(len(asked)))
        match effect:
            case Load(worker, life, load) if source.random() < 0.2 and burst.state.overload.group_of(worker):
                step(burst(LoadRefused(worker, life, load, NoCapacity("no room", 1, False, {})), now))
            case Load(worker, life, load):
                step(burst(Loaded(worker, life, load), now))
            case AskCapacity(worker, life):
                step(burst(KvCapacity(worker, life, ROOM), now))
            case SwitchRoutes(number):
                step(burst(RoutesLeft(number, 1), now))
            case AwaitSwitched(number):
                step(burst(RequestsSwitched(number, ()), now))
            case RecheckLater(_, worker, name):
                step(burst(Recheck(worker, name), now))

    for turn in range(300):
        now = turn * 0.5
        drawn, state = source.random(), burst.state
        groups = serving_groups(state)
        name = source.choice([*state.overload.groups] or [""])
        if drawn < 0.1 and len(groups) > 1:
            one, other = source.sample(groups, 2)
            members = [m.worker for m in (*one.members, *other.members)]
            borders = sorted({0, 6, *source.sample(range(1, 6), len(members) - 1)})
            hops = tuple(Hop(w, a, b) for w, (a, b) in zip(members, pairwise(borders), strict=True))
            order: Any = DropParameters(one.application, hops)
        elif drawn < 0.2:
            order = source.choice([RestoreParameters(name, {}), stay(state, name), stay(state, name)])
        elif drawn < 0.25:
            worker = source.choice([*state.workers])
            if state.workers[worker].alive:
                step(burst.down(worker, now))
                burst.starting(worker, now)
                step(burst(WorkerUp(worker, burst.incarnation), now))
            continue
        else:
            if asked:
                answer(now)
            continue
        if not refusal(state, order):
            step(burst(order, now))
    for _ in range(2000):
        for name, group in [*burst.state.overload.groups.items()]:
            if group.stage is GroupStage.PIPELINE:
                step(burst(RestoreParameters(name, {}), 200.0))
        if not asked:
            break
        answer(200.0)
    replicas = [f"{one.name}@w{n}" for one in served for n in range(4)]
    assert (burst.stage(), burst.routes(), burst.state.whole) == ("", replicas, True)

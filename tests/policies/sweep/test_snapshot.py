"""Digests, snapshots and forks cover the whole state: whatever is changed shows, and whatever is copied goes on alike."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies import COMPILED
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.model.chain import Block, Chain, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.model.partition import cut_blocks
from blockwright.policies.overload.pool_reading import pool_reading
from blockwright.policies.plan.grammar import REGEX, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import ComponentsReleased, ComponentsWanted, Event, Started
from blockwright.policies.sweep.page_events import HoldPages
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, pipeline, replica, submission, tier, variant

# Compiled objects have no attributes to be found by name: these tests look into the sources (make test runs both forms).
looks_inside = pytest.mark.skipif(COMPILED, reason="compiled objects cannot be looked into")
SAID = "_effects"  # emitted effects are no part of the state
FORKED = (("attribute", "_shared"), ("attribute", "_lent"))  # whether a fork reads it too: costs a copy, changes nothing
WATCHED = ("attribute", "news")  # notes for the head, which forks and replicas do not make
MEMO = ("attribute", "_paths")  # what is looked at less closely next time: tests/policies/model/test_local_paths.py
# indexes of text are made anew from it; the acceptance that a sequence begins with is that of its application, shown there
MADE = (("attribute", "_own"), ("attribute", "_predicted"), ("attribute", "prior"))
OWNED = ("attribute", "_owned")  # the same of each block of a list
SHARED = (("attribute", "tokens"), ("attribute", "hashes"), ("attribute", "pages"))  # beyond its count a list is a fork's
PARTS = (
    "rows", "queue", "memory", "leases", "page_transfers", "page_pins", "return_timeouts", "pending_pages", "routes",
    "drafts", "bottlenecks", "guesses", "grammars", "turns", "outgoing", "_plans",
)  # fmt: skip


def world() -> World:
    """Two workers with pipelines and replicas, little memory and few rows; one account has a cap."""
    target = chain("base")
    tuned = variant(target, "tuned", [1])
    former = Chain("a", target.blocks, 1000)
    lower = tier(target, 1)
    routes = [pipeline(["w0", "w1"], target), replica("w0", target), replica("w0", tuned), replica("w0", lower)]
    own = chain("small", own_from=0)
    mixed = Block((target.components[0], *own.components[1:3], *target.components[3:]))
    small = Chain("small", (mixed,), 1000, drafts_for="base")
    target = replace(target, blocks=cut_blocks({"base": target.components, "small": small.components})["base"])
    routes.append(replica("w0", small))
    more = {"tenant_weights": {"b": 2}, "tenant_kv_share": {"a": 0.15}, "kv_reserve": 0.1}
    return World(["w0", "w1"], [target, tuned, former, lower, small], routes, budget=40 * 64 * 1024, chunk_size=8,
                 max_rows=4, sweep_tokens=64, **more)  # fmt: skip


def busy(moves: int = 60, seed: int = 1) -> World:
    """In the middle of everything: guests, flights, parked and waiting sequences, pages on their way between workers, a
    component to be placed, the account of a model that went."""
    made = world()
    routes = list(made.routes.values())
    for number, worker in enumerate(made.workers.values()):
        worker.state.apply(Started(number), 0.0)
        worker.state.apply(ComponentsWanted(1, "base", [WantedComponent(b"component", [PackedTensor(b"q", 100_000)])]), 0.0)
    chance = random.Random(seed)
    for i in range(10):
        prompt = list(range(12)) if i % 3 else [chance.randrange(40) for _ in range(chance.randint(1, 20))]
        priority = offline_urgency() if i % 5 == 4 else i % 2
        more: dict[str, object] = {"arrival": float(i), "tenant": "ab"[i % 2], "timeout": 100.0 * (i % 2)}
        more["priority"] = priority
        if i % 4 == 3:
            vocabulary = TokenVocabulary(file="", digest=b"", size=100, ends=[3])
            grammar = Grammar(form=REGEX, text="ab"[i % 8 // 4], vocabulary=vocabulary)
            more["sampling"] = SamplingParams(temperature=0.0, grammar=grammar)
        more["drafts"] = DraftOptions(True, 2, [5, 6, 7], ["base:1"], "small") if i % 3 else None
        made.submit(submission(f"r{i}", prompt, len(prompt) + 12, routes[i % 2].id, stop=[3], **more))
    made.serve([one for one in made.update.chains if one.application != "a"], routes)
    for number in range(moves):
        kind, what = chance.choice(made.moves())
        made._move(kind, what)
        if number % 20 == 13:
            leave(made, routes[:2], number // 20)
    made.collect(made.workers["w0"])
    base, hashes = made.chains["base"].components[1].id, page_hashes(list(range(12)), 4)
    for event in (
        ComponentsWanted(2, "base", [WantedComponent(base, [PackedTensor(b"norm", 100)])]),
        ComponentsReleased([base], "base"),
        HoldPages("head/gateway", "paused", 1, routes[0].id, "b", 0, 1.0, [*hashes, b"unknown"], 60.0, expects=True),
    ):
        made.workers["w0"].state.apply(event, 0.0)
    return made


def leave(made: World, routes: Sequence[Route], number: int) -> None:
    """A request moves to the other route with its pages."""
    there = [request for request in made.submitted if request not in made.finished]
    if there:
        request = there[number % len(there)]
        made.move(request, next(one.id for one in routes if one.id != made.submitted[request].route))


# what is changed shows -----------------------------------------------------------------------------------------------


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Paths to the plain values of an object, deep down, and behind the last one of each container; of a long list the first
    three, that in the middle and the last."""
    if isinstance(value, bool | int | float | str | bytes) or value is None:
        yield path
    elif isinstance(value, list | tuple | array):
        for i in sorted({0, 1, 2, len(value) // 2, len(value) - 1} & set(range(len(value)))):
            yield from places(value[i], (*path, i))
        if isinstance(value, list | array):
            yield (*path, "new")
    elif isinstance(value, dict):
        for key in list(value)[:3]:
            yield from places(value[key], (*path, ("key", key)))
        yield (*path, "new")
    elif isinstance(value, set):
        yield (*path, "new")
    else:
        for name in attributes(value):
            if name != SAID:
                yield from places(getattr(value, name), (*path, ("attribute", name)))


def attributes(value: object) -> list[str]:
    return list(getattr(value, "__dict__", None) or getattr(value, "__slots__", ()))


def changed(state: SweepState, path: tuple[object, ...]) -> SweepState:
    """A copy in which the value at ``path`` is another."""
    copy = deepcopy(state)
    holders: list[object] = [copy.parts if path[0] != ("attribute", "_plans") else copy]
    for step in path[:-1]:
        holders.append(_get(holders[-1], step))
    new = _other(_get(holders[-1], path[-1]) if path[-1] != "new" else None)
    for holder, step in zip(reversed(holders), reversed(path), strict=True):
        if isinstance(holder, tuple):  # which is replaced in what holds it
            assert isinstance(step, int)
            new = (*holder[:step], new, *holder[step + 1 :])
            continue
        _set(holder, step, new)
        break
    return copy


def _get(holder: object, step: object) -> object:
    if isinstance(step, tuple):
        return holder[step[1]] if step[0] == "key" else getattr(holder, step[1])  # type: ignore[index]
    return holder[step]  # type: ignore[index]


def _set(holder: object, step: object, new: object) -> None:
    if step == "new":
        if isinstance(holder, dict):
            holder[b"new"] = 1
        elif isinstance(holder, set):
            holder.add(1 << 20)
        else:
            holder.append(1)  # type: ignore[attr-defined]
    elif isinstance(step, tuple) and step[0] == "attribute":
        object.__setattr__(holder, step[1], new)
    else:
        holder[step[1] if isinstance(step, tuple) else step] = new  # type: ignore[index]


def _other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1 if value < float("inf") else 1.0
        case str():
            return value + "x"
        case bytes():
            return value + b"x"
    return 1


def shows(state: SweepState, other: SweepState) -> bool:
    """Either the digest is another, or what follows from other parts does not follow any more."""
    try:
        other.check()
        return other.digest() != state.digest()
    except (AssertionError, LookupError, TypeError, ValueError, AttributeError):
        return True


@looks_inside
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("moves", [0, 25, 60, 120])
def test_any_change_of_any_part_shows(part: str, moves: int) -> None:
    seen, hidden = 0, []
    for worker in busy(moves).workers.values():
        state = worker.state
        state.check()
        root = state if part == "_plans" else state.parts
        for path in places(getattr(root, part), (("attribute", part),)):
            if (
                path[-1] in FORKED
                or MEMO in path
                or WATCHED in path
                or not {*MADE}.isdisjoint(path)
                or (path[-2] == OWNED and path[-1] != "new")
            ):
                continue
            if part == "rows" and path[1] in SHARED and path[-1] == "new":
                continue
            seen += 1
            if not shows(state, changed(state, path)):
                hidden.append(path)
    assert not hidden
    assert seen > 3


def test_another_configuration_shows() -> None:
    state = busy(20).workers["w0"].state
    for name in SweepConfig.__dataclass_fields__:
        copy = state.fork()
        copy.parts.config = replace(state.config, **{name: _other(getattr(state.config, name))})
        assert copy.digest() != state.digest(), name


def test_the_world_is_busy_enough_for_the_tests_above() -> None:
    """Each part of a state has something in it at some time, and none is forgotten above."""
    snapshot = world().workers["w0"].state.snapshot()
    assert snapshot.keys() - {"config", "plans"} == {*PARTS} - {"_plans"}
    seen: set[str] = set()
    empty: set[str] = set()
    for moves in range(0, 480, 12):
        for worker in busy(moves).workers.values():
            for part in PARTS:
                owner = getattr(worker.state if part == "_plans" else worker.state.parts, part)
                for name in attributes(owner):
                    (seen if getattr(owner, name) else empty).add(f"{part}.{name}")
    rare = {"drafts._behind", "drafts._resting"}  # test_model_drafts.py copies states with some
    rare.add("guesses._open")  # test_guesses.py copies a host that holds one
    rare.add("grammars._owed")  # test_grammars.py copies a host that owes
    # short sweeps are made by workers without pipelines alone: test_tier_turns.py
    assert empty - seen <= {f"outgoing.{SAID}", "leases._void", "turns.short", *rare}


# what is copied goes on alike ----------------------------------------------------------------------------------------


def test_a_snapshot_is_plain_and_travels() -> None:
    for moves in (0, 25, 60, 120):
        for worker in busy(moves).workers.values():
            snapshot = worker.state.snapshot()
            assert all(type(value) in (int, float, str, bytes, bool, type(None)) for value in leaves(snapshot))
            travelled = msgpack.unpackb(msgpack.packb(snapshot), strict_map_key=False)
            restored = SweepState.restore(travelled)
            restored.check()
            assert restored.digest() == worker.state.digest()
            assert restored.snapshot() == snapshot


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *leaves(item))
    else:
        yield value


class Logged:
    """A state that writes down all that happens to it."""

    def __init__(self, state: SweepState) -> None:
        self.state = state
        self.log: list[tuple[str, object, object]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.state, name)

    def apply(self, event: Event, now: float) -> None:
        self.log.append(("apply", event, now))
        self.state.apply(event, now)

    def plan(self, now: float) -> SweepPlan | None:
        plan = self.state.plan(now)
        self.log.append(("plan", now, plan))
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        self.log.append(("commit", plan, result))
        self.state.commit(plan, result, now)


@claim("A replica of the scheduler that is fed by the log agrees with the worker", of="serving")
@given(seed=st.integers(0, 10_000), moves=st.integers(0, 120))
@examples(40)
def test_a_replica_restored_at_any_time_and_fed_by_the_log_agrees(seed: int, moves: int) -> None:
    made = busy(moves, seed)
    replicas = {}
    for name, worker in made.workers.items():
        replicas[name] = SweepState.restore(worker.state.snapshot())
        worker.state = Logged(worker.state)  # type: ignore[assignment]
    made.run(seed)
    for name, worker in made.workers.items():
        again = replicas[name]
        for kind, first, second in worker.state.log:  # type: ignore[attr-defined]
            if kind == "apply":
                again.apply(first, second)
            elif kind == "plan":
                assert again.plan(first) == second
            else:
                again.commit(first, second, 0.0)
        again.check()
        assert again.digest() == worker.state.digest()


@given(seed=st.integers(0, 10_000), moves=st.integers(0, 120))
@examples(40)
def test_a_fork_is_independent(seed: int, moves: int) -> None:
    """Whichever goes on, the other stays as it was, and both are right."""
    made = busy(moves, seed)
    for name, worker in made.workers.items():
        ahead, behind = worker.state.fork(), worker.state.fork()
        digest = worker.state.digest()
        assert ahead.digest() == behind.digest() == digest
        for _ in range(12):
            plan = ahead.plan(0.0)
            if plan is None:
                break
            while ahead.open_plans > 1:  # those of the live worker come first
                ahead.commit(*_oldest(ahead), 0.0)
            ahead.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), 0.0)
            ahead.check()
        assert worker.state.digest() == behind.digest() == digest, name
        behind.check()
    copies = {name: worker.state.fork() for name, worker in made.workers.items()}
    digests = {name: copy.digest() for name, copy in copies.items()}
    made.run(seed)
    for name, copy in copies.items():
        copy.check()
        assert copy.digest() == digests[name]


def _oldest(state: SweepState) -> tuple[SweepPlan, SweepResult]:
    number, plan = next(iter(state._plans._plans.items()))
    return SweepPlan(number), SweepResult(number, [0] * len(plan.sample), scores=[[] for _ in plan.score])


def test_the_same_events_lead_to_the_same_digest() -> None:
    first, second = (busy().workers["w0"].state for _ in range(2))
    assert first.digest() == second.digest() == first.fork().digest()


def test_looking_changes_nothing() -> None:
    """What the worker calls beside events, plans and their ends (``tests/policies/test_boundaries.py``)."""
    for moves in (0, 25, 60, 120):
        for worker in busy(moves).workers.values():
            state, parts = worker.state, worker.state.parts
            looks: list[Callable[[], object]] = [
                state.fork, state.snapshot, state.digest, state.queues, state.offline_capacities, state.kv_by_application,
                partial(state.room, "paused"), parts.routes.all_in_force, parts.routes.planned,
                parts.memory.residence.bytes_by_holder, parts.memory.left_alone, parts.memory.pages.accounts.all_held,
                parts.memory.pages.shared_now, partial(pool_reading, state), state.check,
            ]  # fmt: skip
            before = state.digest()
            for look in looks:
                look()
                assert state.digest() == before, look

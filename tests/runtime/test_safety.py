"""The runtime's safety properties over 1,000 seeds: 3 nodes and the head, 20 actors, 300 messages, 5 faults in each.

no call without an outcome, none twice, none after its deadline; the right answer; no message handled twice; FIFO for each
sender, receiver and lane; streams without gaps; monitors fire exactly once; nothing of a fenced incarnation is seen;
supervised actors come back in order, within the intensity, and are never two; a transfer over a link ends once, in exactly
the bytes that were sent or an error, in the order of its class; in the end no node holds anything of what is over.
``safety/`` says how each is checked. ``make nightly`` plays them all, any run the first 25.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import get_args

import pytest

from blockwright.runtime.testing import seeds
from blockwright.runtime.testing.faults import Fault
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.runtime.safety.players import FAULTS, LINK_FAULTS, PLACES, Game

CHUNK = 25
CHUNKS = 40
DAILY = 0  # the chunk whose seeds are played below


@pytest.fixture(autouse=True)
def quiet():
    """Thousands of warnings about lost nodes cost more than the simulation."""
    logger = logging.getLogger("blockwright.runtime")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@claim("The safety properties of the runtime hold for random kills, partitions and losses", of="actor-runtime")
@pytest.mark.parametrize("chunk", parts(CHUNKS, DAILY))
def test_the_safety_properties_hold(chunk: int) -> None:
    for seed in seeds(CHUNK, first=chunk * CHUNK):
        world = Game(seed).play()
        assert len(world.sent) >= 300, seed


@claim("The safety properties of the runtime hold when heads die, sleep and are cut off, too", of="actor-runtime")
@pytest.mark.parametrize("chunk", parts(125, 1))
def test_the_safety_properties_hold_when_heads_die(chunk: int) -> None:
    """Members outlive them: nobody is declared down for a head's death, and nothing is handled twice because of it."""
    heads = 0
    for seed in seeds(8, first=20_000 + 8 * chunk):
        game = Game(seed, heads=3)
        assert len(game.play().sent) >= 300, seed
        heads += len(game.sim.heads)
    assert heads > 8, "heads died"


@pytest.mark.parametrize("seed", [20_220, 20_921])
def test_an_accusation_stands_until_a_head_has_decided_on_it(seed: int) -> None:
    """Two met again under the next head of which one had taken the other for down: neither was declared down (20,220), or
    the head died before it decided (20,921).
    """
    for one in seeds(1, first=seed):
        Game(one, heads=3).play()


@claim("Transfers through device slots end once and come whole, whatever dies, breaks or is lost", of="actor-runtime")
@pytest.mark.parametrize("chunk", parts(20, 1))
def test_the_safety_properties_hold_with_device_slots(chunk: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in seeds(5, first=5000 + 5 * chunk):
        game = Game(seed, device=True)
        game.play()
        kinds += game.freight.kinds
    assert kinds["device-slot"] > 20, kinds


@claim("Transfers by NCCL end once and come whole, whatever dies, breaks or is lost", of="actor-runtime")
@pytest.mark.parametrize("chunk", parts(20, 1))
def test_the_safety_properties_hold_with_nccl(chunk: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in seeds(5, first=6000 + 5 * chunk):
        game = Game(seed, cards=True)
        game.play()
        assert game.hub is not None
        assert game.hub.violations == [], seed
        kinds += game.freight.kinds
    assert kinds["nccl"] > 20, kinds


def test_the_size_of_a_seed() -> None:
    assert len(PLACES) == 4  # with the head
    assert sum(PLACES.values()) == 20
    assert len(Game(0).sim.plan.faults) == FAULTS + LINK_FAULTS
    assert FAULTS == 5
    assert CHUNK * CHUNKS >= 1000


@claim("A call ends in its value or a typed error, whenever the peer dies", of="actor-runtime", headline=True)
@claim("The safety properties of the runtime hold for random kills, partitions and losses", of="actor-runtime")
def test_the_first_seeds_hold_and_every_kind_of_message_and_outcome_occurs() -> None:
    games = [Game(seed) for seed in seeds(CHUNK)]
    worlds = [game.play() for game in games]
    assert all(len(world.sent) >= 300 for world in worlds)
    kinds = {kind for world in worlds for kind in world.kinds}
    outcomes = {sent.outcome for world in worlds for sent in world.sent.values()}
    assert kinds == {"call", "cast", "rush", "rush_cast", "aside", "hang", "relay", "fail", "stream"}
    assert {"answered", "cancelled", "DeadlineExceeded", "NodeDown", "ValueError"} <= outcomes
    assert sum(len(watch.fired) for world in worlds for watch in world.watches) >= 20
    assert sum(len(world.down_at) for world in worlds) >= 20
    freights = [game.freight for game in games]
    assert {outcome for freight in freights for outcome in freight.outcomes} == {"done", "PeerGone"}
    assert sum(freight.cut for freight in freights) >= 40, "messages go in several chunks"
    assert {type(fault) for game in games for fault in game.sim.plan.faults} == set(get_args(Fault))


def test_without_faults_nothing_is_lost() -> None:
    for seed in range(5):
        game = Game(seed, faults=0)
        world = game.play()
        assert set(game.freight.outcomes) == {"done"}
        assert all(load.came == 1 for load in game.freight.loads.values())
        sent = {key: one for key, one in world.sent.items() if one.at > 0.02}  # before, nodes do not know each other
        casts = [key for key, one in sent.items() if one.timeout is None]
        assert len(casts) > 30
        assert [key for key in casts if world.handled[key] != 1] == []
        outcomes = {one.outcome for one in sent.values()}
        assert outcomes <= {"", "answered", "cancelled", "DeadlineExceeded", "ValueError", "left"}


def test_a_game_replays() -> None:
    games = [Game(3), Game(3)]
    worlds = [game.play() for game in games]
    assert games[0].sim.trace.digest == games[1].sim.trace.digest
    assert [s.outcome for s in worlds[0].sent.values()] == [s.outcome for s in worlds[1].sent.values()]

"""Variants: routes where all of their components are for other applications, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control.events import (
    Application,
    Deploy,
    Load,
    Pressed,
    Publish,
    RecheckLater,
    Remove,
    Serve,
    Undeploy,
    Unload,
    Vary,
)
from blockwright.policies.model.chain import Component, Kind
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, FakeCluster, application
from blockwright.tests.policies.control.test_world_walks import at_rest
from blockwright.tests.policies.control.world import ControlWorld

ONE, OTHER = application("a", "xAz", kv=KV), application("b", "xBz", kv=KV)
VARIANT = application("a~1", "xBz", kv=KV, variant_of="a")


def house(*workers: str, room: int = 4, served: tuple[Application, ...] = (ONE, OTHER)) -> FakeCluster:
    made: FakeCluster = FakeCluster(*workers, room=room).serve(*served)
    made(Vary((VARIANT,)))
    return made


def routes(made: FakeCluster, application: str = "a~1") -> list[str]:
    return [route.home for route in made.state.routes.values() if route.application == application]


def routes_of(made: FakeCluster, application: str) -> list[str]:
    return [route.id for route in made.state.routes.values() if route.application == application]


@claim("A variant adds no parameter bytes: it serves where other models have all of its components", of="adaptive")
def test_it_serves_where_others_have_its_components_and_loads_nothing_new() -> None:
    made = house()
    assert routes(made) == ["w0"]
    held = made.workers["w0"].held
    assert held.keys() == {c.encode() * 16 for c in "xABz"}, "nothing but the two applications' components"
    assert [held[c.encode() * 16] for c in "AB"] == [{"a"}, {"b", "a~1"}]
    assert [chain.variant_of for chain in made.state.publication().chains] == ["", "", "a"]


@claim("A variant adds no parameter bytes but stitches: it serves where other models have everything else", of="adaptive")
def test_stitches_are_all_that_it_adds() -> None:
    joined = replace(
        VARIANT, components=(VARIANT.components[0], joint("S"), VARIANT.components[1], joint("T"), *VARIANT.components[2:])
    )
    made: FakeCluster = FakeCluster("w0", room=6).serve(ONE, OTHER)
    made(Vary((joined,)))
    assert routes(made) == ["w0"]
    held = made.workers["w0"].held
    assert {id for id, holders in held.items() if holders == {"a~1"}} == {b"S" * 16, b"T" * 16}
    made(Undeploy("b"))
    assert routes(made) == []
    assert not held.keys() & {b"S" * 16, b"T" * 16}, "they go with its route"


def joint(name: str) -> Component:
    return Component(name.encode() * 16, Kind.STITCH, 1, 8, 8)


def test_it_ends_with_the_application_that_has_its_components_and_is_published_before_they_go() -> None:
    made = house()
    made.log.clear()
    made(Undeploy("b"))
    assert routes(made) == []
    assert b"B" * 16 not in made.workers["w0"].held
    last = max(place for place, effect in enumerate(made.log) if isinstance(effect, Unload) and effect.holder == "a~1")
    assert any(isinstance(effect, Publish) for effect in made.log[:last])
    made(Deploy("b"))
    assert routes(made) == ["w0"], "and comes back with it"


def test_variants_may_change_and_no_name_is_used_again() -> None:
    """Make the variants anew, which a server does when a model is added or removed."""
    made, of_b = house(), replace(ONE, name="new", variant_of="b")
    before = [route for route in made.state.routes if route.startswith("a~1")]
    made(Vary((replace(VARIANT, name="another"), of_b)))
    assert [route for route in made.state.routes if "~" in route] == [*before, *routes_of(made, "b~1")], "its route stays"
    made(Vary((of_b,)))
    assert [name for name in made.state.served if "~" in name] == ["b~1"]
    made(Vary((of_b, VARIANT)))
    assert [name for name in made.state.served if "~" in name] == ["b~1", "a~2"]
    made(Vary(()))
    assert [*made.state.served] == ["a", "b"]
    assert {id for holders in made.workers["w0"].held.values() for id in holders} == {"a", "b"}


def test_it_comes_back_with_its_application_and_with_the_other_one() -> None:
    made = house()
    made(Undeploy("a"))
    made(Deploy("a"))
    assert routes(made, "a~2") == ["w0"]
    made(Remove("a"))
    made(Serve((ONE,)))
    assert [*made.state.served] == ["b", "a"], "until it is asked for again"
    made(Vary((VARIANT,)))
    assert routes(made, "a~3") == ["w0"]


@pytest.mark.parametrize("event", [Remove("a"), Undeploy("a")], ids=["removed", "undeployed"])
def test_it_is_gone_with_the_application_in_whose_place_it_serves(event: Remove | Undeploy) -> None:
    made = house()
    made(event)
    assert "a~1" not in made.state.served
    assert made.workers["w0"].held.keys() == {c.encode() * 16 for c in "xBz"}


def test_a_worker_that_died_has_it_again_when_all_is_loaded() -> None:
    made = house("w0", "w1")
    assert sorted(routes(made)) == ["w0", "w1"]
    made.down("w1")
    assert routes(made) == ["w0"]
    made.up("w1")
    assert sorted(routes(made)) == ["w0", "w1"]


def test_its_chain_is_published_whole_once_it_has_a_route() -> None:
    made = house(served=(ONE,))
    assert routes(made) == []
    made(Serve((OTHER,)))
    assert routes(made) == ["w0"]
    chains = {chain.application: chain for chain in made.state.publication().chains}
    assert chains["a~1"].components == VARIANT.components


def test_there_is_none_while_an_application_is_loaded_on_demand() -> None:
    """Its parameters make room for others', and each application is counted alone then."""
    made = house(room=3)
    assert made.state.served["b"].on_demand or made.state.served["a"].on_demand
    assert routes(made) == []


def test_it_comes_back_with_the_application_for_which_a_restarted_worker_had_no_room() -> None:
    made = house()
    made.down("w0")
    made.rooms["w0"] = 3
    made.up("w0")
    assert made.state.served["b"].on_demand
    assert routes(made) == []
    made.workers["w0"].room = 4
    for later in made.pending(RecheckLater):
        made.reply(later)
    assert not made.state.served["b"].on_demand
    assert routes(made) == ["w0"]


def test_where_it_cannot_be_loaded_it_is_not_tried_again_until_the_worker_restarts() -> None:
    made: FakeCluster = FakeCluster(room=4).serve(ONE, OTHER)
    made.broken["a~1"] = "broken"
    made(Vary((VARIANT,)))
    assert routes(made) == []
    assert loads(made.log) == 1
    made(Undeploy("b"))
    made(Deploy("b"))
    assert loads(made.log) == 1
    made.broken.clear()
    made.down("w0")
    made.up("w0")
    assert routes(made) == ["w0"]


def test_it_waits_until_its_application_is_served() -> None:
    """Placement waits for workers to report, and variants are known before."""
    made = house(served=(OTHER,))
    assert "a~1" not in made.state.served
    made(Serve((ONE,)))
    assert routes(made) == ["w0"]


def loads(effects: Iterable[Any]) -> int:
    return sum(isinstance(effect, Load) and effect.load.holder == "a~1" for effect in effects)


def test_no_block_of_a_variant_is_copied_in_a_burst() -> None:
    """A copy would add parameters, and its route would not end with the applications that have them."""
    made: FakeCluster = FakeCluster("w0", "w1", block_idle=60.0).serve(ONE, OTHER)
    made(Vary((VARIANT,)))
    before = {*made.state.holdings.plan}
    for worker in ("w0", "w1"):
        made(Pressed(worker, made.state.workers[worker].incarnation, (PressedBlock(0.9, {"a~1": (0, 2)}),)))
    assert {*made.state.holdings.plan} == before


def test_a_new_worker_gets_routes_of_whole_models_only() -> None:
    made = house()
    assert [route.application for route in made.state.placement.on_new_worker("w0")] == ["a", "b"]


class VariedWorld(ControlWorld):
    """A world without dropped parameters, in which variants of its models may serve."""

    def start(self) -> None:
        super().start()
        if "a" not in self.state.served:
            return  # it had no room
        tunes = [one for one in self.state.served.values() if one.application.name.startswith("t")]
        of_a = [replace(one.application, name=f"a~{n}", model="", variant_of="a") for n, one in enumerate(tunes)]
        own = self.state.served["a"].application
        of_t = [replace(own, name=f"{one.application.name}~0", model="", variant_of=one.application.name) for one in tunes]
        self(Vary((*of_a, *of_t)))

    def _name(self) -> str:
        """Return a model: no operator names a variant."""
        return self.random.choice([name for name, one in self.state.served.items() if not one.variant] or ["a"])

    def _order(self) -> None:
        self.answer()

    def _lacks(self) -> None:
        self.answer()


@pytest.mark.parametrize("part", range(0, 60, 20))
def test_worlds_with_variants_come_to_rest(part: int) -> None:
    """Deployed, on demand, burst, drained, scaled, killed: no variant adds a parameter (``check``), none is left over."""
    shown = 0
    for seed in range(part, part + 20):
        world = VariedWorld(seed)
        world.start()
        for _ in range(300):
            world.step()
            shown += any(route.application.partition("~")[1] for route in world.state.routes.values())
        world.settle()
        at_rest(world)
    assert shown > 100, "variants serve in many steps"

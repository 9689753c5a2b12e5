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
    Remove,
    Serve,
    Undeploy,
    Unload,
    Vary,
)
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, FakeCluster, application
from blockwright.tests.policies.control.test_placement import B, narrow

ONE, OTHER = application("a", "xAz", kv=KV), application("b", "xBz", kv=KV)
VARIANT = application("a~1", "xBz", kv=KV, variant_of="a")


def house(*workers: str, room: int = 4, served: tuple[Application, ...] = (ONE, OTHER)) -> FakeCluster:
    made: FakeCluster = FakeCluster(*workers, room=room).serve(*served)
    made(Vary((VARIANT,)))
    return made


def routes(made: FakeCluster, application: str = "a~1") -> list[str]:
    return [route.home for route in made.state.routes.values() if route.application == application]


@claim("A variant adds no parameter bytes: it serves where other models have all of its components", of="adaptive")
def test_it_serves_where_others_have_its_components_and_loads_nothing_new() -> None:
    made = house()
    assert routes(made) == ["w0"]
    held = made.workers["w0"].held
    assert held.keys() == {c.encode() * 16 for c in "xABz"}, "nothing but the two applications' components"
    assert [held[c.encode() * 16] for c in "AB"] == [{"a"}, {"b", "a~1"}]
    assert [chain.variant_of for chain in made.state.publication().chains] == ["", "", "a"]


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


@pytest.mark.parametrize("pressed", [("a~1",), ("a~1", "b")], ids=["alone", "with its donor"])
def test_a_burst_copies_no_block_for_it(pressed: tuple[str, ...]) -> None:
    """A copy would load parameters for it. Its donor's block may be copied."""
    made = narrow()
    made(Vary((replace(B, name="a~1", variant_of="a"),)))
    made(Pressed("w0", 1, (PressedBlock(0.9, dict.fromkeys(pressed, (3, 5))),)))
    assert made.routes() == ["a@w0", "a~1@w0#v1", "b@w0", *(["b@w0+w1"] if "b" in pressed else [])]


def test_a_new_worker_gets_routes_of_whole_models_only() -> None:
    made = house()
    assert [route.application for route in made.state.placement.on_new_worker("w0")] == ["a", "b"]


def loads(effects: Iterable[Any]) -> int:
    return sum(isinstance(effect, Load) and effect.load.holder == "a~1" for effect in effects)

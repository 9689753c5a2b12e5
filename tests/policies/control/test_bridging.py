"""Variants while models are loaded on demand: they own nothing, hold up no load, and tell how long a load takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.control.claims import Claimant, ClaimKind
from blockwright.policies.control.events import AskUsage, AwaitQuiet, Load, Loaded, RecheckLater, Unload, Vary
from blockwright.policies.model.chain import Component, Kind
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, SIZE, FakeCluster, application

A, B, C = (application(name, f"x{name.upper()}z", kv=KV) for name in "abc")
VARIANT = application("a~1", "xBz", kv=KV, variant_of="a")
STITCH = Component(b"S" * 16, Kind.STITCH, SIZE, 8, 8)
STITCHED = replace(VARIANT, components=(VARIANT.components[0], STITCH, *VARIANT.components[1:]))
TWO = 4  # components of two of the models


def house(room: int = TWO, variant: object = VARIANT, *workers: str) -> FakeCluster:
    """A cluster with room for b and c, and a variant of a, which is on demand and not there."""
    made: FakeCluster = FakeCluster(*workers, room=room).serve(B, C, A)
    assert made.state.served["a"].parked
    made(Vary((variant,)))  # type: ignore[arg-type]
    return made


def variants(made: FakeCluster) -> list[str]:
    """Return the workers where the variant may serve, as gateways know."""
    return [one.home for one in made.state.table.news().routes if one.application == "a~1"]


def look(made: FakeCluster) -> None:
    """Let time pass until the load is looked at again."""
    for later in made.pending(RecheckLater):
        made.reply(later)


@claim("A variant serves while its own model is on demand and not loaded", of="adaptive")
def test_it_serves_while_its_model_is_away() -> None:
    made = house()
    assert variants(made) == ["w0"]
    assert made.workers["w0"].held.keys() == {c.encode() * 16 for c in "xBCz"}, "it adds nothing"


def test_what_it_borrows_is_its_donors_alone() -> None:
    made = house()
    assert made.workers["w0"].owned() == {"a~1": 0, "b": SIZE, "c": SIZE}


@claim("While a model is loaded in the place of an unused one, its variant serves", of="adaptive")
def test_it_serves_until_its_model_is_there_and_after_that() -> None:
    made = house()
    made.active["b"] = 1
    made.manual = True
    made.want("a")
    while not made.state.served["c"].parked:  # the unused one gives way
        made.reply(made.asked[0])
    assert made.pending(Load)
    assert (made.published(), made.states()["a"]) == (["a~1", "b"], "loading")
    made.manual = False
    while loads := made.pending(Load):
        made.reply(loads[0])
    assert made.published() == ["a", "a~1", "b"]


def test_it_goes_with_its_donor_before_the_room_of_the_load_is_counted() -> None:
    made = house()
    made.active["c"] = 1
    made.log.clear()
    made.want("a")
    assert made.published() == ["a", "c"]
    own = [n for n, effect in enumerate(made.log) if isinstance(effect, Load) and b"A" * 16 in effect.load.ids]
    gone = [effect.holder for effect in made.log[own[0] : own[1]] if isinstance(effect, Unload)]
    assert gone == ["b", "a~1"], "both are gone before it is tried again"


@claim("A load on demand never waits for the request of a variant, which may be the one that it is for", of="adaptive")
def test_it_ends_before_a_model_in_use_must_give_way() -> None:
    """KV of its requests may be what the load lacks: the worker refuses it with no unused model left."""
    made = house(room=3)
    assert made.published() == ["a~1", "b"]
    made.active["b"] = 1
    made.want("a")
    assert made.published() == ["b"], "the variant has ended at once"
    assert made.state.holdings.claims.of(ClaimKind.UNVARIED, Claimant.DEMAND) == {"w0": None}.keys()
    assert not made.awaited, "and b is still in use"
    made.tick(0.5)
    look(made)
    made.tick(1.0)
    look(made)
    assert made.awaited == ["b"], "as without variants"
    made.end("b")
    for quiet in made.pending(AwaitQuiet):
        made.reply(quiet)
    assert made.published() == ["a"]
    look(made)
    assert not made.state.holdings.claims.of(ClaimKind.UNVARIED, Claimant.DEMAND)


def test_it_comes_back_after_a_load_that_is_not_wanted_any_more() -> None:
    made = house(room=3)
    made.active["b"] = 1
    made.want("a")
    assert variants(made) == []
    made.end("a")
    look(made)
    assert made.published() == ["a~1", "b"]


def test_it_does_not_give_way_to_batches() -> None:
    made = house(room=3)
    made.active["b"] = 1
    made.offline.add("a")
    made.waits["a"] = 9
    made.want("a")
    assert made.published() == ["a~1", "b"]


def test_it_stays_on_workers_where_the_load_lacks_nothing() -> None:
    made: FakeCluster = FakeCluster("w0", "w1", room=3)
    made.rooms["w1"] = 5
    made.serve(B, A)
    made(Vary((VARIANT,)))
    made.broken["a@w1"] = "broken"
    assert "w0" in variants(made)
    made.active["b"] = 1
    made.want("a")
    assert "w0" not in variants(made)
    assert "w1" in variants(made)


def test_stitches_that_had_no_room_are_tried_again_when_a_model_is_gone() -> None:
    made = house(TWO, STITCHED)
    assert variants(made) == [], "there is room for two models and no stitch"
    assert not made.state.served["a~1"].on_demand
    made.active["b"] = 1
    made.rooms["w0"] = made.workers["w0"].room = 3 + 1
    made.want("a")  # c gives way
    assert "c" not in made.published()
    made.workers["w0"].room = 9
    made.want("c")
    assert variants(made) == ["w0"] or made.state.served["a"].on_demand is False


@pytest.mark.parametrize(("nbytes", "seconds", "estimate"), [(300, 3.0, 1.0), (200, 1.0, 0.5), (0, 1.0, 0.0)])
def test_gateways_hear_how_long_a_load_takes(nbytes: int, seconds: float, estimate: float) -> None:
    """One component of a is missing beside b and c."""
    made: FakeCluster = FakeCluster(room=TWO, manual=True).serve(B, C, A)
    while made.asked:
        effect = made.asked[0]
        if isinstance(effect, Load) and made.workers["w0"].refusal(effect.load) is None:
            made.asked.remove(effect)
            made(Loaded(effect.worker, effect.incarnation, effect.load, nbytes, seconds))
        else:
            made.reply(effect)
    made.manual = False
    made(Vary((VARIANT,)))
    found = made.state.publication().load_seconds
    assert found == ({"a": pytest.approx(estimate)} if estimate else {})
    assert made.state.table.news(made.state.version - 1).load_seconds == found


def test_nothing_is_estimated_without_variants() -> None:
    made: FakeCluster = FakeCluster(room=TWO).serve(B, C, A)
    made.state.workers["w0"].loaded(300, 3.0)
    made.want("a")
    assert made.state.publication().load_seconds == {}
    assert AskUsage() in made.log

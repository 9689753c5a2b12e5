"""Isolation of a worker: it stops once all who have sequences at it are silent, and not because it stood still itself."""

from __future__ import annotations

from blockwright.policies.cluster.isolation import Isolation, nodes_with_sequences


def test_it_is_isolated_when_all_have_been_silent_and_no_longer_when_one_is_heard() -> None:
    isolation = Isolation(2.0, 0.5)
    heard = {"g0": 0.0, "g1": 0.0}
    seen = []
    for step in range(1, 14):
        now = 0.5 * step
        if step <= 4:
            heard = {"g0": now, "g1": 0.0}
        if step == 12:
            heard = heard | {"g1": now}
        seen.append((isolation.look(heard, now), isolation.isolated))
    assert seen == [(False, False)] * 7 + [(True, True)] + [(False, True)] * 3 + [(True, False), (False, False)]


def test_a_worker_that_stood_still_blames_nobody() -> None:
    isolation = Isolation(2.0, 0.5)
    assert not isolation.look({"g0": 0.4}, 0.5)
    assert not isolation.look({"g0": 0.4}, 60.0)
    assert not isolation.look({"g0": 60.1}, 60.5)


def test_without_sequences_of_others_or_without_a_limit_nothing_stops() -> None:
    for silence, heard in ((2.0, {}), (0.0, {"g0": 0.0})):
        isolation = Isolation(silence, 0.5)
        for step in range(40):
            isolation.look(heard, 0.5 * step)
        assert not isolation.isolated


def test_a_node_that_is_new_has_been_heard() -> None:
    isolation = Isolation(2.0, 0.5)
    for step in range(20):
        isolation.look({"g0": 0.0}, 0.5 * step)
    assert isolation.isolated
    assert isolation.look({"g0": 0.0, "g1": 9.0}, 10.0)
    assert not isolation.isolated


def test_who_has_sequences_is_a_gateway_of_ones_own_or_the_home_of_a_guest() -> None:
    assert nodes_with_sequences(["head/gateway", "g1/gateway", "g1/gateway"], ["w2"]) == {"head", "g1", "w2"}


def test_a_worker_that_is_often_late_stops_within_twice_the_silence_and_goes_on_when_a_node_is_heard() -> None:
    isolation = Isolation(2.0, 0.5)
    isolation.look({"g0": 0.4, "g1": 0.0}, 0.5)
    assert not isolation.stops(3.3)
    isolation.look({"g0": 0.4, "g1": 0.0}, 3.3)
    assert isolation.stops(3.4), "the last sign is three seconds old"
    assert not isolation.isolated, "of which it was not there for two"
    assert isolation.look({"g0": 3.5, "g1": 0.0}, 3.8), "so it plans anew"
    assert not isolation.stops(3.8)
    assert not isolation.look({"g0": 3.5, "g1": 0.0}, 4.3)


def test_without_sequences_of_others_or_without_a_limit_no_sign_is_too_old() -> None:
    for silence, heard in ((2.0, {}), (0.0, {"g0": 0.0})):
        isolation = Isolation(silence, 0.5)
        isolation.look(heard, 0.5)
        assert not isolation.stops(60.0)

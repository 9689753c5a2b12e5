"""The meaning of a node that is out of reach: whom a head asks, and which workers a gateway has lost."""

from __future__ import annotations

from blockwright.policies.cluster.reach import Sight, WorkerLosses, both_live, doubt, who_reaches, whom_to_ask


def test_two_gateways_are_asked_those_on_other_machines_first() -> None:
    assert whom_to_ask(["z", "y"], ["g1", "g2"]) == ["y", "z"]
    assert whom_to_ask(["z"], ["g2", "g1"]) == ["z", "g1"]
    assert whom_to_ask([], ["g1"]) == ["g1"]
    assert whom_to_ask([], []) == []


def test_a_gateway_reaches_a_worker_if_it_has_heard_that_life_since_it_was_asked() -> None:
    sights = {
        "b": Sight(3, 0.4, False),
        "a": Sight(3, 0.0, False),
        "earlier": Sight(2, 0.1, False),
        "unknown": Sight(0, 0.1, False),
        "silent": Sight(3, 1.0, False),
        "broken": Sight(3, 0.2, True),
        "mute": None,
    }
    assert who_reaches(sights, 3, 1.0) == ("a", "b")
    assert who_reaches({"mute": None}, 3, 1.0) == ()


def test_the_sentence_names_who_reaches_it_and_how_long_it_stays() -> None:
    assert doubt("w1", ["g1"], 299.6) == (
        "worker w1 is out of reach of the head, but g1 reaches it, so it serves on; it is declared down in 300 s unless it "
        "comes back"
    )
    assert "g1 and g2 reach it, so it serves on; it is declared down in 0 s" in doubt("w1", ["g1", "g2"], -1.0)


def test_a_gateway_loses_a_worker_whose_connection_breaks_once() -> None:
    losses = WorkerLosses()
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {"w0": 1}) == [], "w1 is not met yet"
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {"w0": 1, "w1": 2}) == []
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {}) == [("w0", 1), ("w1", 2)]
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {}) == [], "it was said"
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {"w1": 2}) == []
    assert losses.look(["w0", "w1"], {"w0": 1, "w1": 2}, {}) == [("w1", 2)]


def test_only_lives_that_the_head_has_told_of_and_that_serve_are_lost() -> None:
    losses = WorkerLosses()
    assert losses.look(["w0"], {"w0": 1}, {"w0": 2, "w9": 1}) == []
    assert losses.look(["w0"], {"w0": 1}, {}) == [], "the head told of another life"
    losses.look(["w0"], {"w0": 2}, {"w0": 2})
    assert losses.look([], {"w0": 2}, {}) == [], "it serves nothing"
    assert losses.look(["w0"], {"w0": 3}, {"w0": 3}) == [("w0", 2)], "its next life is another"


def test_two_members_out_of_each_others_reach_both_live_on_unless_they_share_limits() -> None:
    worker, gateway = "worker", "gateway"
    assert all(both_live(*pair) for pair in ((worker, worker), (worker, gateway), (gateway, worker)))
    assert not any(both_live(*pair) for pair in ((gateway, gateway), (worker, "predictor"), ("", ""), (gateway, "")))

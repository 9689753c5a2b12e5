"""The process with each worker's predictor: one on its machine first, the emptiest else, with as few changes as can be."""

from __future__ import annotations

from blockwright.policies.prediction.coverage import covered

NODES = {"predictors": "a", "px": "b", "py": "b"}


def test_a_worker_is_predicted_on_its_machine_where_that_can_be() -> None:
    workers = {"w1": "a", "w2": "b", "w3": "b", "w4": "c"}
    found = covered(workers, NODES, {})
    assert (found["w1"], {found["w2"], found["w3"]}) == ("predictors", {"px", "py"})
    assert found["w4"] in NODES, "elsewhere, if no process is there"
    assert covered(workers, {}, found) == {}
    assert covered({}, NODES, found) == {}


def test_a_worker_keeps_its_predictor_until_a_better_place_comes() -> None:
    workers = {f"w{number}": "b" for number in range(6)}
    alone = covered(workers, {"predictors": "a"}, {})
    assert set(alone.values()) == {"predictors"}
    near = covered(workers, {"predictors": "a", "px": "b"}, alone)
    assert set(near.values()) == {"px"}
    assert covered(workers, NODES, near) == near, "another one on the same machine is no better"
    rest = covered(workers, {"predictors": "a", "py": "b"}, near)
    assert set(rest.values()) == {"py"}
    more = covered(workers | {"w9": "b"}, NODES, near)
    assert more == near | {"w9": "py"}, "the emptiest"

"""Which workers can be spared."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.draining import needed_by, relied_on, spare

ROUTES = {"chat": [("w0",), ("w1",)], "code": [("w1", "w2")], "gone": []}


@pytest.mark.parametrize(("worker", "application"), [("w0", ""), ("w1", "code"), ("w2", "code"), ("w7", "")])
def test_a_worker_is_needed_where_no_route_leads_past_it(worker: str, application: str) -> None:
    assert needed_by(worker, ROUTES) == application


def test_what_is_served_nowhere_keeps_nobody() -> None:
    assert needed_by("w0", {"gone": []}) == ""


def test_what_serves_nowhere_yet_keeps_a_worker_on_which_it_could() -> None:
    assert relied_on([(("w0",), False), (("w1",), True)]) == [("w1",)]
    assert relied_on([(("w0",), False), (("w1",), False)]) == [("w0",), ("w1",)]
    assert relied_on([]) == []


def test_of_two_replicas_either_can_be_spared_and_then_the_other_cannot() -> None:
    assert spare({"w0": 3.0, "w1": 1.0, "w2": 0.0}, ROUTES) == {"w0": 3.0}
    assert spare({"w0": 3.0, "w1": 1.0}, {"chat": [["w0"], ["w1"]]}) == {"w0": 3.0, "w1": 1.0}
    assert spare({"w1": 1.0}, {"chat": [["w1"]]}) == {}

"""Outages of simulated clusters: no request is lost or answered twice, and nothing that is still there is read again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.control import events
from blockwright.simulator.control_step import ControlStep
from blockwright.simulator.description import DescriptionError
from blockwright.simulator.outages import InterruptedControl
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from .clusters import described, run

BODY, PAGE = 4000, 32  # bytes of parameters and of a page
DISK = 2 * BODY  # bytes a second: parameters take half a second


def spec(count: int = 4, **more: Any) -> Any:
    """Instances of one model with room for 40 pages beside it."""
    model = {"name": "m0", "kv_bytes": 8, "context": 150, "parameters": BODY}
    kind = {"count": count, "blocks": 0, "memory": BODY + 40 * PAGE, "memory_chunk": PAGE, "max_rows": 4}
    return described(models=[model], instances=kind, loading={"disk": DISK}, dispatch={"policy": "round-robin"}, **more)


def arriving(seconds: float, every: float = 0.1, output: int = 40) -> list[WorkloadRequest]:
    return [WorkloadRequest(n, n * every, "m0", 8, output) for n in range(round(seconds / every))]


def lawful(simulation: ClusterSimulation, log: list[dict[str, Any]]) -> Counter[str]:
    """Check that each request was answered once, and return the counts of the controller."""
    finished = Counter(entry["request"] for entry in log if entry["what"] == "finished")
    assert finished == {one.demand.number: 1 for one in simulation.requests}
    for one in simulation.requests:
        assert one.demand.at < one.first <= one.ended
    assert isinstance(simulation.policy, InterruptedControl)
    simulation.policy.state.check()
    return Counter(simulation.control())


def sent(log: list[dict[str, Any]], begin: float, end: float) -> set[str]:
    return {entry["instance"] for entry in log if entry["what"] == "dispatched" and begin < entry["at"] < end}


@claim("The simulator plays heads that go away: adoption is the live policy, and reads nothing again", of="simulator")
def test_without_a_head_nothing_is_started_again_and_the_next_one_reads_nothing() -> None:
    """The head is away from 1 to 4 s. i-0 dies before, i-1 meanwhile: both come back after it, and load for 0.5 s."""
    tape = list[ControlStep]()
    deaths = [{"instance": "i-0", "at": 0.5, "down": 1.0}, {"instance": "i-1", "at": 2.0, "down": 1.0}]
    made = spec(deaths=deaths, heads=[{"at": 1.0, "away": 3.0}])
    simulation, log = run(made, arrivals=arriving(8.0), tape=tape)
    counts = lawful(simulation, log)
    assert counts["loads"] == 2, "of those that died"
    assert counts["loaded_bytes"] == 2 * BODY
    assert not [step for step in tape if 1.0 < step.at < 4.0], "the controller hears of nothing"
    assert sent(log, 0.55, 2.0) == {"i-1", "i-2", "i-3"}
    assert sent(log, 2.0, 4.5) == {"i-2", "i-3"}
    assert sent(log, 4.55, 5.5) == {"i-0", "i-2", "i-3"}, "its process waited for a head"
    assert sent(log, 5.6, 8.0) == {"i-0", "i-1", "i-2", "i-3"}
    versions = [effect.version for step in tape for effect in step.effects if isinstance(effect, events.Publish)]
    assert versions == sorted(set(versions)), "versions go on across heads"


def test_a_load_that_ends_without_a_head_is_found_by_the_next_one() -> None:
    """i-0 begins to load at 0.6 s, the head goes at 0.7 s, and the load ends at 1.1 s."""
    tape = list[ControlStep]()
    made = spec(deaths=[{"instance": "i-0", "at": 0.5, "down": 0.1}], heads=[{"at": 0.7, "away": 1.0}])
    simulation, log = run(made, arrivals=arriving(4.0), tape=tape)
    counts = lawful(simulation, log)
    assert counts["loaded_bytes"] == BODY
    assert "i-0" not in sent(log, 0.5, 1.69)
    assert "i-0" in sent(log, 1.7, 2.2)


def test_a_load_on_its_way_when_the_next_head_comes_is_waited_for() -> None:
    """The same with a head that is back at 0.9 s, while the load ends at 1.1 s."""
    made = spec(deaths=[{"instance": "i-0", "at": 0.5, "down": 0.1}], heads=[{"at": 0.7, "away": 0.2}])
    simulation, log = run(made, arrivals=arriving(4.0))
    assert lawful(simulation, log)["loaded_bytes"] == BODY
    assert "i-0" not in sent(log, 0.5, 1.09)
    assert "i-0" in sent(log, 1.1, 1.6)


@claim("Simulated workers that were cut off come back with what they hold: nothing is read again", of="simulator")
@pytest.mark.parametrize(("warm", "nbytes", "again"), [(True, 0, 6.0), (False, 2 * BODY, 6.5)])
def test_workers_that_are_cut_off(warm: bool, nbytes: int, again: float) -> None:
    """Two of four from 1 to 6 s. They are missed at 3.5 s; then what they had goes on elsewhere."""
    made = spec(cuts=[{"at": 1.0, "seconds": 5.0, "share": 0.5, "warm": warm}])
    simulation, log = run(made, arrivals=arriving(9.0))
    counts = lawful(simulation, log)
    assert counts["loaded_bytes"] == nbytes
    assert sent(log, 3.55, again) == {"i-2", "i-3"}
    assert sent(log, again + 0.01, 9.0) == {"i-0", "i-1", "i-2", "i-3"}
    ended = [entry["at"] for entry in log if entry["what"] == "finished" and entry["instance"] in ("i-0", "i-1")]
    assert not [at for at in ended if 1.0 < at < again]
    late = [one for one in simulation.requests if one.restarts]
    assert late
    assert all(one.ended > 3.5 for one in late)


def test_a_worker_that_dies_while_it_is_cut_off_comes_back_with_nothing() -> None:
    cut = {"at": 1.0, "seconds": 5.0, "share": 0.5}
    simulation, log = run(spec(cuts=[cut], deaths=[{"instance": "i-0", "at": 2.0, "down": 1.0}]), arrivals=arriving(9.0))
    assert lawful(simulation, log)["loaded_bytes"] == BODY
    assert "i-0" not in sent(log, 2.0, 6.45)


def test_a_cut_without_a_head_is_noticed_by_gateways_and_healed_by_the_next_head() -> None:
    made = spec(cuts=[{"at": 1.0, "seconds": 4.0, "share": 0.5}], heads=[{"at": 0.5, "away": 6.0}])
    simulation, log = run(made, arrivals=arriving(9.0))
    assert lawful(simulation, log)["loaded_bytes"] == 0
    assert sent(log, 3.55, 6.5) == {"i-2", "i-3"}
    assert sent(log, 6.55, 9.0) == {"i-0", "i-1", "i-2", "i-3"}


@claim("A simulated roll starts every worker anew, one joining for each that is drained", of="simulator")
@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_a_roll(grace: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five serve, one stands by. As many as before serve all the time."""
    tape, serving, publish = list[ControlStep](), list[int](), InterruptedControl._publish

    def published(control: InterruptedControl) -> None:
        publish(control)
        serving.append(len(control._cluster.gateway.active["m0"]))

    monkeypatch.setattr(InterruptedControl, "_publish", published)
    made = spec(6, roll={"at": 1.0, "surge": 0.2, "start": 0.5}, provisioning={"grace": grace})
    simulation, log = run(made, arrivals=arriving(15.0), tape=tape)
    counts = lawful(simulation, log)
    first = [f"i-{n}" for n in range(5)]
    assert sent(log, 0.0, 1.0) == {*first}
    drained = [step.event.worker for step in tape if isinstance(step.event, events.DrainWorker) and step.event.drain]
    assert drained == first
    assert counts["loaded_bytes"] == 6 * BODY
    assert sent(log, 13.0, 15.0) == {*first}, "the surge has left"
    policy = simulation.policy
    assert isinstance(policy, InterruptedControl)
    assert {name: worker.life for name, worker in policy.workers.items()} == {**dict.fromkeys(first, 2), "i-5": 1}
    assert set(serving[serving.index(5) :]) == {5, 6}
    restarts = sum(one.restarts for one in simulation.requests)
    assert restarts > 0 if grace == 0 else restarts == 0


@given(st.data())
@examples(25)
def test_whatever_goes_away_no_request_is_lost_or_answered_twice_and_a_replay_is_equal(data: Any) -> None:
    times = st.floats(0.1, 6.0).map(lambda at: round(at, 3))
    names = st.sampled_from([f"i-{n}" for n in range(4)])
    deaths = [
        {"instance": data.draw(names), "at": data.draw(times), "down": data.draw(times), "stalls": data.draw(st.booleans())}
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    heads = [{"at": data.draw(times), "away": data.draw(times)}] if data.draw(st.booleans()) else []
    cuts = [{"at": data.draw(times), "seconds": 2.6 + data.draw(times), "share": 0.5, "warm": data.draw(st.booleans())}]
    made = spec(deaths=deaths, heads=heads, cuts=cuts if data.draw(st.booleans()) or not heads else [])
    simulation, log = run(made, arrivals=arriving(7.0))
    lawful(simulation, log)
    again, _ = run(made, arrivals=arriving(7.0))
    assert again.digest() == simulation.digest()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"heads": [{"at": 1.0, "away": 0.0}]}, r"heads\[0\].away is 0; give the seconds"),
        ({"heads": [{"at": 1.0, "away": 2.0}, {"at": 2.0, "away": 1.0}]}, r"heads\[1\].at is 2, and the head before"),
        ({"cuts": [{"at": 1.0, "seconds": 2.0}]}, r"cuts\[0\].seconds is 2; give more than the 2.5 s"),
        ({"cuts": [{"at": 1.0, "seconds": 5.0, "share": 0.1}]}, r"cuts\[0\].share is 0.1, which is no worker of 4"),
        ({"cuts": [{"at": 1.0, "seconds": 5.0, "share": 0.6}]}, r"cuts\[0\].share is 0.6; give at most 0.5"),
        ({"roll": {"at": 1.0}}, r"roll.surge is 0.02, which is 0 of 4 workers"),
        ({"roll": {"at": 1.0, "surge": 0.5}, "heads": [{"at": 1.0, "away": 1.0}]}, "roll is given together with heads"),
        ({"roll": {"at": 1.0, "surge": 0.5}, "deaths": [{"instance": "i-0", "at": 1.0}]}, "together with deaths"),
        ({"heads": [{"at": 1.0, "away": 1.0}], "provisioning": {"start": 2}}, "heads is given together with provisioning"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_with_a_sentence(more: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        spec(**more)

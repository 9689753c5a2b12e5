from types import SimpleNamespace

from blockwright.runtime.node.heartbeat import MOST, Heartbeat, measure


def instance(name, waiting=0, since=None):
    return SimpleNamespace(name=name, waiting=waiting, since=since)


def test_what_is_idle_is_counted_and_not_named():
    instances = [instance("idle"), instance("full", waiting=3), instance("busy", since=7.5)]
    assert measure(instances, now=10.0, lag=0.25) == Heartbeat(0.25, 3, {"full": 3}, {"busy": 2.5})


def test_only_the_most_loaded_are_named():
    heartbeat = measure([instance(f"a{i}", waiting=i, since=float(i)) for i in range(100)], now=100.0, lag=-0.1)
    assert heartbeat.lag == 0.0, "a clock that wakes early is not late"
    assert heartbeat.actors == 100
    assert list(heartbeat.waiting) == [f"a{i}" for i in range(99, 99 - MOST, -1)]
    assert list(heartbeat.running) == [f"a{i}" for i in range(MOST)]

from types import SimpleNamespace

from blockwright.runtime.node.vitals import MOST, Vitals, measure


def cell(name, waiting=0, since=None):
    return SimpleNamespace(name=name, waiting=waiting, since=since)


def test_what_is_idle_is_counted_and_not_named():
    cells = [cell("idle"), cell("full", waiting=3), cell("busy", since=7.5)]
    assert measure(cells, now=10.0, lag=0.25) == Vitals(0.25, 3, {"full": 3}, {"busy": 2.5})


def test_only_the_most_loaded_are_named():
    vitals = measure([cell(f"a{i}", waiting=i, since=float(i)) for i in range(100)], now=100.0, lag=-0.1)
    assert vitals.lag == 0.0, "a clock that wakes early is not late"
    assert vitals.actors == 100
    assert list(vitals.waiting) == [f"a{i}" for i in range(99, 99 - MOST, -1)]
    assert list(vitals.running) == [f"a{i}" for i in range(MOST)]

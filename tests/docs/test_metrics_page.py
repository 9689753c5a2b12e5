"""docs/metrics.md has the metrics of the actor runtime as exported; the others: tests/equality/test_every_metric.py."""

from __future__ import annotations

from blockwright.api.runtime_metrics import runtime_families
from blockwright.runtime.inspection import ActorView, LaneView, NodeView, PeerView, measures
from blockwright.tests.docs.metrics_page import PAGE, row, rows

ACTOR = ActorView("a", "Kind", 1, 0, LaneView(), LaneView(), "", 0.0, 0, 0, 0, 0)
PEER = PeerView("w0", 1, 0.0, 0.0, 0, 0, 0, 0, False)


def test_the_runtimes_metrics_are_told() -> None:
    view = NodeView("head", 1, 0.0, [ACTOR], [PEER], {"NoSuchActor": 1}, {"stale": 1})
    assert rows("blockwright_runtime_") == sorted(row(family) for family in runtime_families(measures(view)))


def test_there_are_no_others() -> None:
    told = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(told) == sorted([*rows(":"), *rows("blockwright_runtime_")])

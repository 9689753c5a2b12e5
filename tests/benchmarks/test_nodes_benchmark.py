"""The benchmark of nodes measures what it says: it does it to the node, and checks the cause."""

from __future__ import annotations

import nodes
import pytest

from blockwright.runtime import LocalCluster
from blockwright.runtime.cluster import failure_detector
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system


@pytest.mark.nightly
async def test_a_crash_is_timed_and_a_wrong_cause_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "EXIT_GRACE", PATIENCE)  # a busy machine may tell late of the end of a process
    async with LocalCluster(1, silence=PATIENCE) as cluster:
        assert await nodes.milliseconds_to_down(cluster, "w0", "crash", "exited -9") > 0
        with pytest.raises(nodes.WrongCauseError, match="declared down as 'exited -9' instead of 'hung'"):
            await nodes.milliseconds_to_down(cluster, "w0", "crash", "hung")


def test_what_hung_may_be_reported_with_the_cause() -> None:
    assert nodes.is_cause("hung: endpoint stop_the_loop of actor stuck has held the event loop", "hung")
    assert not nodes.is_cause("unreachable", "hung")
    assert not nodes.is_cause("hung", "exited -9")


@pytest.mark.nightly
def test_the_import_is_timed_in_processes_of_their_own() -> None:
    assert all(milliseconds > 0 for milliseconds in nodes.import_milliseconds(1))

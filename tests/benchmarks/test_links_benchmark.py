"""The links benchmark measures what it says: every activation that was sent is counted, over the kind of link it names."""

from __future__ import annotations

import links
import pytest
from harness import OURS, Report


@pytest.mark.system
@pytest.mark.nightly
async def test_priorities_and_buffers_are_measured_on_real_links() -> None:
    report = Report("links", {}, ())
    async with links.rig() as made:
        assert {kind: link.kind for kind, link in made.links.items()} == {kind: kind for kind in ("shared-memory", "frames")}
        await links.measure_priorities(report, made.links, made.sink, runs=1, load=links.PART)
        await links.measure_buffers(report, made, runs=1)
    assert report.median("link/priorities", "p99_us", OURS) is not None
    assert report.median("link/none", "p99_us", OURS) is not None
    assert {subject for case, _, subject in report.samples if case == "buffers/64MiB"} == {
        OURS,
        "pyzmq",
        "pyzmq copy=False",
        "memcpy",
    }

"""How soon a worker that has fallen silent is declared down with the settings that people get, under a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.runtime import Down, ManualClock, Node
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId

STEP = 0.01  # seconds
BOUND = 3.0


async def idle(node: Node, config: int) -> None:
    """The entry of a worker that has nothing to do."""


async def turns() -> None:
    for _ in range(15):
        await asyncio.sleep(0)


@claim("A stopped worker is declared down within three seconds, fenced, killed and replaced", of="faults")
@pytest.mark.parametrize("offset", [0.0, 0.07, 0.2])
@pytest.mark.parametrize("phase", [0.0, 0.1, 0.24, 0.26, 0.4, 0.49])
async def test_what_is_silent_is_declared_down_within_3_seconds(phase: float, offset: float) -> None:
    """Wherever between two beats it stops, and these between two checks of the head; no sooner than the setting says."""
    settings, clock = Settings(), ManualClock()
    launcher = InProcessLauncher(clock=clock)
    head = ClusterHead(
        "head", launcher=launcher, clock=clock, heartbeat=settings.faults.heartbeat, silence=settings.faults.silence
    )
    downs: list[Down] = []
    head.on_down(downs.append)
    await head.start()

    async def advance(seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            clock.advance(STEP)
            await turns()

    await advance(offset)
    await head.launch("w0", f"{__name__}:idle", 0)
    await head.wait_up("w0")
    await advance(3.0 + phase)
    assert downs == [], "it beats"
    launcher.freeze(PeerId("w0", 1))
    passed = 0.0
    while not downs:
        await advance(STEP)
        passed += STEP
        assert passed <= BOUND, f"not declared down after {BOUND} s"
    assert passed >= settings.faults.silence - settings.faults.heartbeat
    assert [(down.node, down.incarnation) for down in downs] == [("w0", 1)]
    await head.stop()

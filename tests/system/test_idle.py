"""A worker that has nothing to do leaves the processor to others: no thread of it spins, whatever it computed before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
BEAT = 0.05  # seconds between heartbeats, each of which wakes the loop
BEATS = 60
EACH = 0.005  # seconds of processor for what a beat does; one thread that spins takes ten times as much


def processor(pid: int) -> float:
    """Seconds that all threads of the process have computed, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turns(pid: int) -> int:
    """How often the thread of the event loop has gone to sleep."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.parametrize("backend", ["native", "torch"])
async def test_an_idle_worker_takes_no_processor(serve: Callable[..., Server], backend: str) -> None:
    server = serve(module="blockwright", workers=1, threads=3, pace="", backend=backend, heartbeat=BEAT).whole()
    async with Client(server) as client:
        (worker,) = (await client.ready()).values()
        pid = worker["pid"]
        for seed in range(3):
            status, _ = await client.post(body(0, 20, prompt_of(200, seed=seed)))
            assert status == 200
        await client.ready()
        before, began = processor(pid), turns(pid)
        await until(lambda: turns(pid) - began >= BEATS, "beats of the worker")
        beats, used = turns(pid) - began, processor(pid) - before
        assert used <= EACH * beats, f"{used:.2f} s of processor in {beats} beats with nothing to do"
    server.stop()

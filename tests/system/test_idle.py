"""A worker that has nothing to do leaves the processor to others: no thread of it spins, whatever it computed before."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
LOOKS = 200  # of this test, over nearly two seconds
MOST = 0.3  # seconds of processor meanwhile: one thread that spins takes all of them, heartbeats a hundredth


def processor(pid: int) -> float:
    """Seconds that all threads of the process have computed, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@claim("A worker with nothing to do uses no processor", of="serving")
@pytest.mark.parametrize("backend", ["native", pytest.param("torch", marks=pytest.mark.nightly)])
async def test_an_idle_worker_takes_no_processor(serve: Callable[..., Server], backend: str) -> None:
    server = serve(module="blockwright", workers=1, threads=3, pace="", backend=backend).whole()
    async with Client(server) as client:
        (worker,) = (await client.ready()).values()
        pid = worker["pid"]
        for seed in range(3):
            status, _ = await client.post(body(0, 20, prompt_of(200, seed=seed)))
            assert status == 200
        await client.ready()
        before, looks = processor(pid), itertools.count()
        await until(lambda: next(looks) >= LOOKS)
        used = processor(pid) - before
        assert used <= MOST, f"{used:.2f} s of processor with nothing to do"
    server.stop()

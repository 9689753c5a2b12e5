"""A forkserver that is begun before there is an event loop: the cluster goes on with it, or nothing is left of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.tests.runtime.cluster.test_processes import gone
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system


def begun(directory: Path) -> tuple[ForkserverLauncher, int]:
    """And the process that it began."""
    launcher, before = ForkserverLauncher(directory, preload=["numpy"]), {child.pid for child in psutil.Process().children()}
    launcher.begin()
    (pid,) = {child.pid for child in psutil.Process().children()} - before
    return launcher, pid


async def one_call(launcher: ForkserverLauncher) -> int:
    """Of a worker; the process that it was forked from."""
    from cluster_entries import CounterConfig

    hub = ClusterHead("head", launcher=launcher, silence=PATIENCE)
    await hub.start()
    await hub.launch("w0", "cluster_entries:counter", CounterConfig(1))
    await hub.wait_up("w0")
    parent = psutil.Process(hub.pid("w0")).ppid()
    assert await hub.node.ref("w0/counter").add(1) == 2
    await hub.stop()
    return parent


def test_the_cluster_goes_on_with_it(tmp_path: Path) -> None:
    launcher, pid = begun(tmp_path / "sockets")
    assert not (tmp_path / "sockets").exists()
    assert asyncio.run(one_call(launcher)) == pid
    assert gone(pid)
    assert not (tmp_path / "sockets").exists()
    launcher.abandon()  # as who began it does in any case


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_is_not_started_is_ended(tmp_path: Path, *, stopped: bool) -> None:
    launcher, pid = begun(tmp_path / "sockets")
    if stopped:
        asyncio.run(launcher.stop())
    launcher.abandon()
    assert gone(pid)


HEAD = """
import os, signal, sys
from pathlib import Path
from blockwright.runtime.cluster.processes import ForkserverLauncher
launcher = ForkserverLauncher(Path(sys.argv[1]), preload=["numpy"])
launcher.begin()
print(launcher._begun[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_whose_head_is_killed_ends(tmp_path: Path) -> None:
    head = subprocess.run([sys.executable, "-c", HEAD, str(tmp_path)], capture_output=True, text=True, check=False)
    pid = int(head.stdout)
    until_now(lambda: gone(pid), f"end of {pid}")


def test_what_hinders_it_is_reported_by_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ForkserverLauncher(tmp_path / "sockets")
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    launcher.begin()
    with pytest.raises(FileNotFoundError, match="/nonexistent/python"):
        asyncio.run(launcher.start(lambda node, status: None))
    assert not (tmp_path / "sockets").exists()

"""Real processes: what only a kernel can show. Each test is short; the forkserver starts in a few tens of milliseconds."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import uvloop

from blockwright.runtime import Down, LocalCluster, NodeDown, RemoteError
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.waiting import PATIENCE, until_now
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import AddressError

pytestmark = pytest.mark.system
HELD = r": endpoint block of actor counter .* has held the event loop .*cluster_entries.py:\d+ in .*; .*asyncio.to_thread.*"


class Rig:
    def __init__(self, directory: Path, silence: float, **options: object) -> None:
        self.launcher = ForkserverLauncher(directory, preload=["numpy"])
        self.hub = ClusterHead("head", launcher=self.launcher, heartbeat=0.05, silence=silence, **options)
        self.downs: list[Down] = []
        self.down = asyncio.Event()
        self.hub.on_down(self._on_down)

    def _on_down(self, down: Down) -> None:
        self.downs.append(down)
        self.down.set()

    async def launch(self, *names: str, start: int = 0) -> None:
        from cluster_entries import CounterConfig

        for name in names:
            await self.hub.launch(name, "cluster_entries:counter", CounterConfig(start, [b"x" * 1000]))
        for name in names:
            await self.hub.wait_up(name)

    def ref(self, node: str):
        return self.hub.node.ref(f"{node}/counter")


@pytest.fixture
async def rig(tmp_path, explained):
    made = Rig(tmp_path / "sockets", silence=30.0)
    await made.hub.start()
    yield made
    await made.hub.stop()
    assert not (tmp_path / "sockets").exists()


@pytest.fixture
async def open_rig(tmp_path, explained):
    """``rig = await open_rig(silence, ...)``: one for this test, which stops it or leaves that to the end."""
    made = []

    async def make(silence: float = 30.0, **options: object) -> Rig:
        made.append(Rig(tmp_path / "sockets", silence, **options))
        await made[-1].hub.start()
        return made[-1]

    yield make
    for rig in made:
        await rig.hub.stop()


async def test_calls_between_processes(rig):
    from cluster_entries import Status

    await rig.launch("w0", "w1", start=5)
    assert await rig.ref("w0").add(1) == 6
    assert await rig.ref("w0").ask("w1/counter", 2) == 7
    status = await rig.ref("w0").status(returns=Status)
    assert status == Status(rig.hub.pid("w0"), 6, [1000], ignores_interrupt=True)
    assert status.pid != os.getpid()
    array = np.arange(100_000, dtype=np.float32)
    np.testing.assert_array_equal(await rig.ref("w0").double(array, returns=np.ndarray), array * 2)
    with pytest.raises(RemoteError, match="ValueError: oh") as caught:
        await rig.ref("w0").fail("oh")
    assert "cluster_entries.py" in caught.value.trace
    order = await asyncio.gather(*[rig.ref("w1").add(1) for _ in range(200)])
    assert order == list(range(8, 208))


@claim("A cancelled call cancels its work in another process", of="actor-runtime")
async def test_cancelling_reaches_the_other_process(rig, until):
    await rig.launch("w0")
    call = asyncio.create_task(rig.ref("w0").wait())
    await asyncio.sleep(0)  # it is sent before what follows: cancelled before its first step it would never begin
    assert await rig.ref("w0").add(1) == 1
    call.cancel()
    assert await until(lambda: rig.ref("w0").cancellations()) == 1


async def test_kill_9_is_seen_and_calls_fail(rig):
    await rig.launch("w0", "w1")
    calls = [asyncio.create_task(rig.ref("w0").wait()) for _ in range(3)]
    await rig.ref("w0").add(1)
    os.kill(rig.hub.pid("w0"), signal.SIGKILL)
    for call in calls:
        with pytest.raises(NodeDown):
            await call
    await rig.down.wait()
    assert rig.downs == [Down("w0", 1, "exited -9")]
    with pytest.raises(RemoteError, match="w0#1 is down"):
        await rig.ref("w1").ask("w0/counter", 1)
    rig.down.clear()
    await rig.launch("w0", start=70)
    assert await rig.ref("w1").ask("w0/counter", 1) == 71
    assert rig.hub.node.peers()["w0"].incarnation == 2
    sockets = os.listdir(rig.launcher.directory)
    assert {name for name in sockets if name.startswith("w0-")} == {"w0-2.sock"}, "those of the dead"


async def test_an_entry_that_fails_gives_its_status_and_its_traceback(capfd, tmp_path, explained):
    from cluster_entries import CounterConfig

    rig = Rig(tmp_path / "sockets", silence=30.0)  # here and not in a fixture, so that its stderr is this test's
    await rig.hub.start()
    await rig.hub.launch("w0", "cluster_entries:broken", CounterConfig())
    with pytest.raises(NodeDown, match="exited 1"):
        await rig.hub.wait_up("w0")
    assert "this entry always fails" in capfd.readouterr().err
    await rig.hub.stop()


async def test_interrupts_do_not_reach_workers(rig):
    await rig.launch("w0")
    os.kill(rig.hub.pid("w0"), signal.SIGINT)
    os.kill(rig.launcher._process.pid, signal.SIGINT)
    assert await rig.ref("w0").add(1) == 1
    await rig.launch("w1")


@claim("A hang is not reported as a crash or an unreachable node, but with the endpoint that blocks", of="actor-runtime")
@pytest.mark.parametrize(("how", "listen"), [("hung", "tcp://127.0.0.1:0"), ("unreachable", "")])
async def test_a_hang_is_distinguished_from_a_process_that_cannot_be_reached(open_rig, how, listen):
    """Stuck in Python, libzmq's thread goes on answering pings; stopped, nothing answers, as when a host is gone."""
    rig = await open_rig(silence=5.0, listen=listen)
    await rig.launch("w0", "w1")
    pid = rig.hub.pid("w0")
    if how == "hung":
        rig.ref("w0").block.cast(60.0)
    else:
        os.kill(pid, signal.SIGSTOP)
    call = asyncio.create_task(rig.ref("w0").add(1))
    async with asyncio.timeout(PATIENCE):
        await rig.down.wait()
    assert re.fullmatch(how + (HELD if how == "hung" else ""), rig.downs[0].cause)
    with pytest.raises(NodeDown, match=how):
        await call
    await rig.hub.members()["w0"].exited.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await rig.ref("w1").add(1) == 1
    with pytest.raises(RemoteError, match=f"w0#1 is down: {how}"):
        await rig.ref("w1").ask("w0/counter", 1)


async def test_a_cluster_over_tcp_with_keys(open_rig):
    rig = await open_rig(listen="tcp://127.0.0.1:0", keys=NodeKeys.generate())
    await rig.launch("w0", "w1")
    assert await rig.ref("w0").ask("w1/counter", 2) == 2
    for pid in (rig.hub.pid("w0"), rig.launcher._process.pid):
        for place in ("environ", "cmdline"):
            outcome = await asyncio.to_thread(Path(f"/proc/{pid}/{place}").read_bytes)
            assert rig.hub._keys.secret not in outcome
    os.kill(rig.hub.pid("w0"), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await rig.down.wait()
    assert rig.downs == [Down("w0", 1, "exited -9")]


async def test_heartbeats_tell_how_a_node_fares(rig, until):
    await rig.launch("w0")
    waits = [asyncio.create_task(rig.ref("w0").wait()) for _ in range(2)]
    peer = rig.hub.node.peers()["w0"]
    await until(lambda: peer.heartbeat.running.get("counter", 0.0) > 0.1)
    assert peer.heartbeat.actors >= 1
    for wait in waits:
        wait.cancel()
    await until(lambda: peer.heartbeat.running == {})

    async def late() -> bool:
        await rig.ref("w0").block(0.3)
        return peer.heartbeat.lag > 0.1  # of its last heartbeat

    await until(late)


async def kill_the_forkserver(rig, until) -> None:
    """And wait until another one is there."""
    dead = rig.launcher._process.pid
    os.kill(dead, signal.SIGKILL)
    await until(lambda: rig.launcher._process.pid != dead and rig.launcher._connected.is_set())


@claim("Workers survive the death of the process that started them", of="faults")
async def test_children_outlive_the_forkserver_and_are_watched_and_ended_without_it(rig, until):
    await rig.launch("w0", "w1", "w2")
    pids = {w: rig.hub.pid(w) for w in ("w0", "w1", "w2")}
    for turn in range(2):
        await kill_the_forkserver(rig, until)
        assert [await rig.ref(w).add(1) for w in pids] == [turn + 1] * 3
    assert rig.downs == []
    assert {node.name: pid for node, pid in rig.launcher.list().items()} == pids
    os.kill(pids["w0"], signal.SIGKILL)
    await until(lambda: rig.downs == [Down("w0", 1, "exited -9")])
    await rig.hub.kill("w1")
    assert gone(pids["w1"])
    await rig.launch("w0")
    assert await rig.ref("w0").add(1) == 1
    assert rig.hub.node.peers()["w0"].incarnation == 2
    os.kill(pids["w2"], signal.SIGSTOP)  # at the end there is one that does not end by itself
    await asyncio.wait_for(rig.launcher.stop(), PATIENCE)
    assert gone(pids["w2"])


async def test_what_is_killed_with_the_forkserver_is_seen_to_end(rig, until):
    await rig.launch("w0", "w1")
    for pid in (rig.hub.pid("w0"), rig.launcher._process.pid, rig.hub.pid("w1")):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: len(rig.downs) == 2)
    assert {(d.node, d.cause) for d in rig.downs} == {("w0", "exited -9"), ("w1", "exited -9")}
    await rig.launch("w0")
    assert await rig.ref("w0").add(1) == 1


async def test_where_the_kernel_has_no_pidfds_children_die_with_the_forkserver(open_rig, until, monkeypatch):
    monkeypatch.setattr("blockwright.runtime.cluster.processes.can_watch", lambda: False)
    rig = await open_rig()
    await rig.launch("w0", "w1")
    pids = [rig.hub.pid(w) for w in ("w0", "w1")]
    os.kill(rig.launcher._process.pid, signal.SIGKILL)
    await until(lambda: len(rig.downs) == 2)
    assert {(d.node, d.cause) for d in rig.downs} == {("w0", "exited -9"), ("w1", "exited -9")}
    await until(lambda: all(gone(pid) for pid in pids))
    await rig.launch("w0")
    assert await rig.ref("w0").add(1) == 1


async def test_a_child_that_was_not_reported_to_the_head_dies_with_the_forkserver(rig, until):
    """At many moments of a launch: no process is left that the head does not know."""
    for n in range(12):
        launch = asyncio.create_task(rig.launch(f"w{n}"))
        await asyncio.sleep(n * 0.002)
        children = psutil.Process(rig.launcher._process.pid).children()
        await kill_the_forkserver(rig, until)
        await asyncio.gather(launch, return_exceptions=True)
        known = {*rig.launcher.list().values()}
        await until(lambda children=children, known=known: all(gone(one.pid) for one in children if one.pid not in known))


@pytest.mark.parametrize("turns", some([0, 1, 2, 5, 20, 200], 0, 5))
async def test_stopping_while_a_forkserver_is_being_replaced(rig, turns):
    await rig.launch("w0")
    os.kill(rig.launcher._process.pid, signal.SIGKILL)
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    async with asyncio.timeout(PATIENCE):
        await rig.hub.stop()
    with pytest.raises(LaunchError, match="stopping"):
        await rig.launch("w0")


async def test_a_launch_that_is_cancelled_leaves_no_process(rig, until):
    await rig.launch("w1")
    launch = asyncio.create_task(rig.launch("w0"))
    await asyncio.sleep(0)
    launch.cancel()
    await rig.launch("w2")  # asked for after it, so it is forked after it
    await until(lambda: {node.name for node in rig.launcher.list()} == {"w1", "w2"})
    await rig.launch("w0")
    assert rig.hub.node.peers()["w0"].incarnation == 2


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path, until):
    """At turns of the loop up to its end, which has many where a process is slow to start."""
    children = psutil.Process().children
    for turns in (*range(30), *(round(30 * 1.5**n) for n in range(1, 40))):
        launcher = ForkserverLauncher(tmp_path / f"{turns}")
        starting = asyncio.ensure_future(launcher.start(lambda node, status: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await launcher.stop()
        assert not (tmp_path / f"{turns}").exists()
    await launcher.stop()
    assert turns > 1
    await until(lambda: not children())
    gc.collect()  # who has not waited for a process is warned of here, not in another test


async def test_a_module_that_cannot_be_preloaded_is_named_and_no_obstacle(tmp_path, caplog):
    rig = Rig(tmp_path / "sockets", silence=30.0)
    rig.launcher = rig.hub._launcher = ForkserverLauncher(tmp_path / "sockets", preload=["no_such_module"])
    await rig.hub.start()
    await rig.launch("w0")
    assert "no_such_module" in caplog.text
    await rig.hub.stop()


async def test_a_forkserver_that_cannot_start_is_an_error_at_launch(tmp_path, monkeypatch):
    rig = Rig(tmp_path / "sockets", silence=30.0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    await rig.hub.start()
    with pytest.raises(LaunchError, match="exited with 1"):
        await rig.launch("w0")
    await rig.hub.stop()


async def test_a_forkserver_that_cannot_be_replaced_is_an_error_at_launch(rig, monkeypatch, until):
    await rig.launch("w0")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    os.kill(rig.launcher._process.pid, signal.SIGKILL)
    await until(lambda: rig.launcher._broken)
    os.kill(rig.hub.pid("w0"), signal.SIGKILL)
    await until(lambda: rig.downs != [])
    with pytest.raises(LaunchError, match="cannot be started again"):
        await rig.launch("w0")


def test_it_works_on_uvloop(tmp_path):
    async def main() -> None:
        rig = Rig(tmp_path / "sockets", silence=30.0)
        await rig.hub.start()
        await rig.launch("w0")
        assert await rig.ref("w0").add(3) == 3
        await rig.hub.kill("w0")
        await rig.hub.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert not (tmp_path / "sockets").exists()


HEAD = """
import asyncio, json, os, signal, sys
from pathlib import Path
from blockwright.runtime import run
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.processes import ForkserverLauncher
from cluster_entries import CounterConfig

async def main():
    launcher = ForkserverLauncher(Path(sys.argv[1]))
    hub = ClusterHead("head", launcher=launcher, silence=60.0)
    await hub.start()
    for name in ("w0", "w1"):
        await hub.launch(name, "cluster_entries:counter", CounterConfig())
        await hub.wait_up(name)
    if sys.argv[2] == "stall":
        hub.node.ref("w0/counter").block.cast(60.0)
    if sys.argv[2] == "orphans":
        dead, stopped = launcher._process.pid, hub.pid("w1")
        os.kill(stopped, signal.SIGSTOP)
        os.kill(dead, signal.SIGKILL)
        while launcher._process.pid == dead or not launcher._connected.is_set():
            await asyncio.sleep(0.01)
    if sys.argv[2] == "drain":
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    print(json.dumps([launcher._process.pid, hub.pid("w0"), hub.pid("w1")]), flush=True)
    if sys.argv[2] == "return":
        await hub.stop()
        return
    if sys.argv[2] == "drain":
        await asked.wait()
        assert await hub.node.ref("w0/counter").add(1) == 1  # the workers were not notified
        await hub.stop()
        return
    await asyncio.Event().wait()

run(main())
"""


async def test_a_local_cluster_that_cannot_start_leaves_nothing(tmp_path):
    cluster = LocalCluster(2, listen="tcp://192.0.2.1:0", directory=tmp_path / "sockets")
    with pytest.raises(AddressError, match="cannot listen on tcp://192"):
        await cluster.start()
    assert not (tmp_path / "sockets").exists()


SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from blockwright.runtime import LocalCluster, run
from cluster_entries import CounterConfig, counter

async def main():
    directory, how = Path(sys.argv[1]), sys.argv[2]
    options = {"listen": "tcp://127.0.0.1:0"} if how != "SIGINT" else {}
    options["silence"] = 60.0
    async with LocalCluster(2, entry=counter, config=CounterConfig(), directory=directory, restarts=3, **options) as cluster:
        pids = [cluster.hub.pid(name) for name in cluster.nodes]
        assert await cluster.node.ref("w0/counter").ask("w1/counter", 1) == 1
        print(json.dumps([cluster.hub._launcher._process.pid, *pids]), flush=True)
        if how != "return":
            await asyncio.Event().wait()

run(main())
"""


@claim("The end of the head or of a local cluster leaves no process, socket or shared memory", of="actor-runtime")
@pytest.mark.parametrize("how", some(["SIGKILL", "SIGTERM", "SIGINT", "return"], "SIGINT", "return"))
def test_the_end_of_a_local_cluster_leaves_nothing(tmp_path, how):
    check_end(SCRIPT, tmp_path / "sockets", how)


def gone(pid: int) -> bool:
    """No such process, or a zombie that only waits for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


ENDS = ["SIGKILL", "SIGTERM", "SIGINT", "stall", "return", "drain", "group", "orphans"]


@claim("The end of the head or of a local cluster leaves no process, socket or shared memory", of="actor-runtime")
@pytest.mark.parametrize("how", some(ENDS, "SIGKILL", "stall", "drain", "orphans"))
def test_the_end_of_the_head_leaves_nothing(tmp_path, how):
    check_end(HEAD, tmp_path / "sockets", how)


def check_end(script: str, directory: Path, how: str) -> None:
    """Run a head, end it in that way, wait until nothing is left of it."""
    shared = set(os.listdir("/dev/shm"))
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(directory), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as head:
        pids = json.loads(head.stdout.readline())
        assert directory.exists() or how == "return"
        group = {"SIGINT": signal.SIGINT, "drain": signal.SIGTERM, "group": signal.SIGKILL}  # as Ctrl-C and timeout do
        if how in group:
            os.killpg(head.pid, group[how])
        elif how != "return":
            head.send_signal(getattr(signal, how, signal.SIGKILL))
        status = head.wait()
    assert status == 0 or how not in ("return", "drain")
    until_now(lambda: all(map(gone, pids)) and not directory.exists(), f"end of {pids} and of {directory}")
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "blockwright" in name}

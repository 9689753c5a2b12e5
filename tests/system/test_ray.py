"""Workers that Ray starts (docs/launchers.md): three local nodes; an actor, a node and the control store are killed in turn.

Ray is installed into an environment of its own, which sees the packages of this one. Where it cannot be had the test is
skipped, by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import STREAMS, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until, until_now

pytestmark = [pytest.mark.system, pytest.mark.nightly]
MARK = "BLOCKWRIGHT_RAY_TEST"
RECONNECT = 5  # seconds for which Ray's processes outlive its control store; 60 by default
INSTALL = 900  # seconds


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has Ray, and what this one has."""
    if find_spec("ray") is not None:
        return sys.executable
    folder = tmp_path_factory.mktemp("ray")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL)
    (own,) = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (own / "shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    python = str(folder / "bin" / "python")
    found = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "ray"], capture_output=True, text=True, timeout=INSTALL, check=False
    )
    if found.returncode:
        pytest.skip(f"Ray cannot be installed here: {found.stderr.strip().splitlines()[-1:]}")
    return python


class RayCluster:
    """A Ray cluster on this machine, and proof of what it leaves behind."""

    def __init__(self, python: str, folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        own = {MARK: self._mark, "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT), "PATH": _path(python)}
        pipe = subprocess.PIPE
        with (folder / "ray.err").open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "blockwright.tests.system.ray_cluster"], stdin=pipe, stdout=pipe, stderr=errors,
                env={**os.environ, **own}, text=True, start_new_session=True,
            )  # fmt: skip
        self.address, *raylets = self._read().split()
        self.raylets = {int(pid) for pid in raylets}

    def _read(self) -> str:
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        assert line, "the Ray cluster has ended"
        return line

    def order(self, words: str) -> None:
        assert self._process.stdin is not None
        print(words, file=self._process.stdin, flush=True)
        assert self._read() == "done\n"

    def workers(self) -> dict[int, tuple[int, int]]:
        """The processes of our workers: their Ray actors, and the raylets of these."""
        found = {}
        for process in self.processes():
            try:
                if "blockwright worker --join -" in " ".join(process.cmdline()):
                    actor = process.parent()
                    found[process.pid] = (actor.pid, actor.ppid()) if actor is not None else (0, 0)
            except psutil.Error:
                continue  # it has just ended
        return found

    def processes(self) -> list[psutil.Process]:
        """All living processes of it, with our workers."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            pipe: IO[str] | None = self._process.stdin
            assert pipe is not None
            pipe.close()
            self._process.wait(timeout=PATIENCE)

    def destroy(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue
        with self._process:  # its pipes, too
            self._process.kill()


def _path(python: str) -> str:
    return os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])


@pytest.fixture
def ray_cluster(ray_python: str, tmp_path: Path) -> Iterator[RayCluster]:
    made = RayCluster(ray_python, tmp_path)
    yield made
    made.destroy()


@claim(
    "Workers on Ray are placed apart, outlive our head, are restarted when actor or node dies, and end with Ray's head",
    of="faults",
)
async def test_an_actor_a_node_and_the_control_store_die(
    serve: Callable[..., Server], expected: list[list[int]], ray_python: str, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys")
    server = serve(
        workers=1,
        python=ray_python,
        arguments=["--listen", "tcp://127.0.0.1:0", "--keys", str(tmp_path / "keys")],
        gateway_in_head="no", gateways=1, orphan_grace=300,
        launcher="ray", launched_workers=2, ray_address=ray_cluster.address, launch_memory="32MiB", launch_cores=1,
    ).whole()  # fmt: skip
    async with Client(server) as client:

        async def serving() -> set[str]:
            routes = (await client.get("/admin/cluster"))[1].get("routes", ())  # none while there is no head
            return {hop["worker"] for route in routes for hop in route["hops"]}

        async def whole() -> Any:
            return await serving() == {"w0", "w1", "w2"}

        async def survives(end: Callable[[int], None]) -> None:
            """What runs a worker dies in the middle of a load: the worker goes with it and comes again, no token is lost."""
            await until(whole, "all serve")
            pid, *_ = found = ray_cluster.workers()
            assert len({raylet for _, raylet in found.values()}) == 2, "on two nodes"
            with slow(server):
                answers = client.load(STREAMS)
                await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
                end(pid)
                await until(lambda: pid not in ray_cluster.workers(), "its process ends with it")
            await client.finished()
            check(answers, expected)

        await survives(lambda pid: os.kill(ray_cluster.workers()[pid][0], signal.SIGKILL))
        await until(whole, "all serve again")
        former, workers = server.head(), ray_cluster.workers()
        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
            os.kill(former, signal.SIGKILL)
        await client.finished()
        check(answers, expected)
        await until(lambda: server.head() not in (0, former) and whole(), "all serve under another head")
        assert ray_cluster.workers() == workers, "they outlive the head, with their actors"
        await survives(lambda pid: ray_cluster.order(f"node {ray_cluster.workers()[pid][1]}"))
        await until(whole, "all serve again")
        ray_cluster.order("control store")
        await until(lambda: not ray_cluster.workers(), "workers end with Ray")

        async def alone() -> Any:
            return await serving() == {"w0"}

        await until(alone, "the head knows it")
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, expected)
        assert (await client.get("/admin/cluster"))[1]["autoscale"]["asked"] == 2, "they are wanted still"
    server.stop()
    ray_cluster.stop()
    until_now(lambda: not ray_cluster.processes(), "no process is left")

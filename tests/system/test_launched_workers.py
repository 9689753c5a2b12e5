"""Workers that a command starts (docs/launchers.md): a stand-in for ssh runs them here, cut off as by a network.

Only the standard input of the stand-in reaches them, as with ssh: when the stand-in is killed, they see it closed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import FAULTY, STREAMS, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until, until_now

pytestmark = pytest.mark.system
SSH = """#!/bin/sh
host=$1; shift
if [ "$host" = down ]; then echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255; fi
cat | setsid --wait "$@"
"""
REFUSED = "exited 255: ssh: connect to host down port 22: Connection refused"
TEMPLATE = "{ssh} {{host}} {python} -m {module} worker --join - --label host={{host}}"


class Launching:
    """A server with one worker of its own, and one that a command starts: on the host ``down``, in vain, or on ``up``."""

    def __init__(self, serve: Callable[..., Server], folder: Path, **settings: Any) -> None:
        make_keys(folder / "keys")
        ssh = folder / "ssh"
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        template = TEMPLATE.format(ssh=ssh, python=sys.executable, module=FAULTY)
        self.server = serve(
            workers=1,
            arguments=["--listen", "tcp://127.0.0.1:0", "--keys", str(folder / "keys")],
            launcher="command",
            launched_workers=1,
            launch_command=template,
            launch_hosts="down,up",
            launch_memory="32MiB",
            **settings,
        ).whole()

    def far(self) -> list[int]:
        """The process of the worker behind the stand-in, if there is one."""
        found = self.server.processes().items()
        return [pid for pid, line in found if line.startswith(f"{sys.executable} -m {FAULTY} worker --join -")]


@claim("A worker that a command starts elsewhere serves, is restarted when it dies, and ends with its pipe", of="faults")
async def test_a_command_starts_a_worker_which_dies_leaves_and_ends_with_the_head(
    serve: Callable[..., Server], expected: list[list[int]], tmp_path: Path
) -> None:
    launching = Launching(serve, tmp_path)
    server = launching.server
    async with Client(server) as client:

        async def serves() -> Any:
            routes = (await client.get("/admin/cluster"))[1]["routes"]
            return {hop["worker"] for route in routes for hop in route["hops"]} == {"w0", "w1"}

        async def survives(end: Callable[[int], None]) -> None:
            """The launched worker ends in the middle of a load; every token is right, and it comes again."""
            await until(serves, "it serves")
            (pid,) = launching.far()
            with slow(server):
                answers = client.load(STREAMS)
                await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
                end(pid)
                await until(lambda: pid not in launching.far(), "its life is over")
            await client.finished()
            check(answers, expected)
            await until(serves, "it serves again")

        await survives(lambda pid: os.kill(pid, signal.SIGKILL))
        view = (await client.workers())["w1"]
        assert (view["labels"], view["joined"]) == ({"host": "up"}, False)
        await survives(lambda pid: os.kill(pid, signal.SIGTERM))
        workers = await client.workers()
        await survives(lambda _: os.kill(workers["w1"]["pid"], signal.SIGKILL))  # of the stand-in alone
        cluster = (await client.get("/admin/cluster"))[1]
        texts = [event["text"] for event in cluster["events"]]
        assert f"worker w1 ended before it was up: {REFUSED}" in texts
        assert "worker w1 is drained: SIGTERM was received" in texts
        assert (cluster["autoscale"]["launcher"], cluster["autoscale"]["asked"]) == ("command", 1)
    server.process.kill()
    server.process.wait(timeout=PATIENCE)
    until_now(lambda: not launching.far(), "its standard input is closed, and it ends")
    server.stop(None, check_logs=False)


OUTLIVING = {"gateway_in_head": "no", "gateways": 1, "orphan_grace": 300, "silence": 4.0}


@claim("A worker that a command started outlives the head, and the next one can stop and restart it", of="faults")
async def test_a_launched_worker_goes_on_when_the_head_dies(
    serve: Callable[..., Server], expected: list[list[int]], tmp_path: Path
) -> None:
    launching = Launching(serve, tmp_path, **OUTLIVING)
    server = launching.server
    async with Client(server) as client:

        async def both() -> Any:
            """The launched worker, once both serve and tell how they are."""
            status, view = await client.get("/admin/cluster")
            if status != 200 or not all(one["state"] == "ready" and one["counters"] for one in view["workers"]):
                return None
            return {one["id"]: one for one in view["workers"]}.get("w1")

        before = await until(both, "it serves")
        with slow(server, 6):
            answers = client.load(STREAMS)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "the first tokens")
            former, far = server.head(), launching.far()
            os.kill(former, signal.SIGKILL)
            late = client.load(4)
        await client.finished()
        check(answers, expected[:STREAMS])
        check(late, expected[:4])
        await until(lambda: server.head() not in (0, former), "another head")
        after = await until(both, "it is adopted")
        assert launching.far() == far
        for same in ("incarnation", "pid", "labels"):
            assert before[same] == after[same], same
        assert before["counters"]["loaded_parameter_bytes"] == after["counters"]["loaded_parameter_bytes"] > 0

        async def again() -> Any:
            found = await both()
            return found is not None and found["incarnation"] > after["incarnation"] and found

        os.kill(far[0], signal.SIGTERM)  # drained, ended and started again, by the next head
        drained = await until(again, "it is started again")
        assert drained["labels"] == {"host": "up"}
        os.kill(server.head(), signal.SIGKILL)
        await until(both, "it is adopted again")
    server.process.kill()
    server.process.wait(timeout=PATIENCE)
    until_now(lambda: not launching.far(), "it ends with the keeper")
    server.stop(None, check_logs=False)

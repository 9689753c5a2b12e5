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

    def __init__(self, serve: Callable[..., Server], folder: Path) -> None:
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

"""``blockwright ps --actors --join``: the actors of a cluster that has no server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from blockwright.api.commands.cli import main
from blockwright.runtime import Actor, Down, LocalCluster, endpoint
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until


class Busy(Actor):
    @endpoint
    async def work(self, n: int) -> int:
        return n


async def _ps(*arguments: str) -> tuple[int | None, str, str]:
    command = (sys.executable, "-m", "blockwright", "ps", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@claim("`ps --actors` shows actors below their supervisors, with or without a server", of="actor-runtime")
@pytest.mark.system
@pytest.mark.parametrize("listen", ["", "tcp://127.0.0.1:0"], ids=["ipc", "tcp"])
async def test_a_cluster_without_a_server(listen: str) -> None:
    async with LocalCluster(2, listen=listen, silence=PATIENCE) as cluster:
        downs: list[Down] = []
        cluster.hub.on_down(downs.append)
        ref = await cluster.node.spawn(Busy, name="busy", on="w1")
        for n in range(3):
            await ref.work(n)
        where = cluster.invitation.split()[2:]
        code, out, err = await _ps("--actors", *where, "--json")
        assert (code, err) == (0, "")
        seen = json.loads(out)
        assert [node["name"] for node in seen["nodes"]] == ["head", "w0", "w1"]
        assert [node["peers"] for node in seen["nodes"]] == [2, 2, 2]
        (busy,) = [actor for actor in seen["actors"] if actor["name"] == "busy"]
        assert (busy["node"], busy["kind"], busy["handled"]) == ("w1", "Busy", 3)
        await until(lambda: downs != [])
        assert [(down.node.startswith("ps-"), down.cause) for down in downs] == [(True, "left")]
        code, out, err = await _ps("--actors", *cluster.invitation.split()[2:])
        assert (code, err) == (0, "")
        assert any(line.startswith("w1/busy#1") for line in out.splitlines())


def test_where_there_is_no_cluster(tmp_path: Path, capsys) -> None:
    assert main(["ps", "--actors", "--join", f"ipc://{tmp_path}/head-1.sock"]) == 1
    assert "cannot be joined" in capsys.readouterr().err
    assert main(["ps", "--actors", "--join", "http://x"]) == 2
    assert "neither tcp://HOST:PORT nor ipc:///PATH" in capsys.readouterr().err
    assert main(["ps", "--join", f"ipc://{tmp_path}/head-1.sock"]) == 2
    assert "add --actors" in capsys.readouterr().err
    assert main(["ps", "--actors", "--join", f"@{tmp_path}/none"]) == 2
    assert "cannot be read" in capsys.readouterr().err

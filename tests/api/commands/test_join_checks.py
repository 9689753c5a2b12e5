"""``doctor --join``: each step of the way to a head, and what is said where it fails."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.actors.members import WorkerAdmission
from blockwright.api.commands.check import FAILED, OK, WARNING
from blockwright.api.commands.cli import main
from blockwright.api.commands.doctor import check_port
from blockwright.api.commands.join_checks import check_address, check_clock, examine_join, read_text
from blockwright.api.program.blocking import LoopThread
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.join_text import JoinTexts
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.tests.claims import claim
from blockwright.tests.worker_config import worker_config
from blockwright.transport.address import split_key
from blockwright.transport.curve import NodeKeys

KEYS = NodeKeys.generate()
LATER = 1 << 33  # seconds of Unix time


def issue(*addresses: str, keys: NodeKeys = KEYS, role: str = "worker", expires: int = LATER) -> str:
    return JoinTexts(keys).issue(addresses, role, expires).pack()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """The address of a head that takes workers in, on a loop of its own."""
    thread = LoopThread()
    launcher = ForkserverLauncher(tmp_path / "sockets")
    hub = ClusterHead("head", launcher=launcher, listen="tcp://127.0.0.1:0", keys=KEYS, join_texts=JoinTexts(KEYS))

    async def begin() -> str:
        await hub.start()
        await hub.node.spawn(WorkerAdmission(hub, worker_config(), (), ""), name="members")
        return split_key(hub.node.endpoint)[0]

    try:
        yield thread.run(begin())
    finally:
        thread.run(hub.stop())
        thread.close()


@claim("`doctor --join` says what would hinder a worker on this machine", of="command-line")
@pytest.mark.system
def test_the_whole_way(
    head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker.join"
    path.write_text(issue("127.0.0.1:1", head))
    assert main(["doctor", "--json", "--join", f"@{path}"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert list(checks) == ["open files", "messages", "join text", "address", "head", "way back", "release", "clock"]
    found = list(examine_join(issue("127.0.0.1:1", head)))
    assert [(check.name, check.status) for check in found][1:3] == [("address", WARNING), ("address", OK)]
    foreign = list(examine_join(issue(head, keys=NodeKeys.generate())))
    assert (foreign[-1].name, foreign[-1].status) == ("head", FAILED)
    assert "cannot be joined" in foreign[-1].text
    monkeypatch.setattr("sys.stdin", io.StringIO(issue(head)))
    assert [check.status for check in examine_join("-")][-1] == OK, "standard input is read once"
    (*_, over) = examine_join(issue(head, expires=5))
    assert (over.name, over.status) == ("head", FAILED)
    assert (over.text.partition(" at ")[0].endswith("expired"), over.fix) == (
        True,
        "make another with blockwright keys join",
    )


def test_a_text_that_is_no_use() -> None:
    for where, said in (("bwj1-x", "cannot be read"), (issue("h:1", role="node"), "admits the role node")):
        text, check = read_text(where)
        assert (text, check.status) == (None, FAILED)
        assert said in check.text
        assert check.fix
    text, check = read_text("@nofile")
    assert text is None
    assert check.text == "--join is '@nofile', but that file cannot be read (No such file or directory)"
    assert check.fix == "make one with blockwright keys join, or with serve --join-file"
    text, check = read_text(issue("h:1"), now=2.0 * LATER)
    assert text is not None
    assert (check.status, check.fix) == (WARNING, "make another with blockwright keys join")
    assert "which is over by this clock" in check.text


def test_an_address_where_nothing_is() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        check = check_address(f"tcp://127.0.0.1:{port}")
        assert (check.status, check.text) == (FAILED, f"127.0.0.1:{port} is not reached (Connection refused)")
        free.listen()
        assert check_address(f"tcp://127.0.0.1:{port}").status == OK
    assert [check.status for check in examine_join(issue(f"127.0.0.1:{port}"))] == [OK, FAILED], "it ends there"


def test_a_gateway_needs_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        nowhere = issue("127.0.0.1:1", role="gateway")
        found = {check.name: check for check in examine_join(nowhere, lambda: check_port(port))}
        assert found["join text"].status == OK
        assert (found["port"].status, found["port"].text) == (FAILED, f"127.0.0.1:{port}: Address already in use")
    worker = [check.name for check in examine_join(issue("127.0.0.1:1"), lambda: check_port(port))]
    assert "port" not in worker, "it answers no HTTP"


def test_clocks() -> None:
    assert [check_clock(ahead).status for ahead in (0.0, 60.0, -60.0, 61.0, -61.0)] == [OK, OK, OK, WARNING, WARNING]
    assert (check_clock(90.0).text, check_clock(-90.0).text) == ("90.0 s ahead of the head's", "90.0 s behind the head's")

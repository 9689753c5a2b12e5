"""Joining by hand: real processes that nobody launched, over TCP with keys and over a socket file."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blockwright.runtime import Down, LocalCluster, ManualClock, Node, NodeDown, RemoteError
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.invitations import Invitation, given
from blockwright.runtime.cluster.join_text import NODE, WORKER
from blockwright.runtime.cluster.joining import default_name, join, stay
from blockwright.runtime.node.peering import CUT_OFF
from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.transport.address import PeerId, check_name
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import AddressError, HandshakeRefused, KeysError, PeerGone
from blockwright.transport.handshake import Admission
from blockwright.transport.sockets import SocketTransport

TCP = "tcp://127.0.0.1:0"


class Rig:
    def __init__(self, listen: str, tmp_path: Path) -> None:
        from cluster_entries import CounterConfig, counter

        self.cluster = LocalCluster(
            1,
            entry=counter,
            config=CounterConfig(),
            listen=listen,
            directory=tmp_path / "sockets",
            heartbeat=0.1,
            silence=30.0,
        )
        self.keyed = bool(listen)
        self.downs: list[Down] = []
        self.cluster.hub.on_down(self.downs.append)
        self.processes: list[asyncio.subprocess.Process] = []

    async def command(self, *arguments: str, stdin: int | None = None) -> asyncio.subprocess.Process:
        """``blockwright node`` in a terminal of its own."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "blockwright",
            "node",
            *arguments,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"},
        )
        self.processes.append(process)
        return process

    async def joined(self, name: str, *arguments: str) -> asyncio.subprocess.Process:
        words = self.cluster.invitation.split()
        assert words[:2] == ["blockwright", "node"]
        process = await self.command(*words[2:], "--name", name, *arguments)
        line = (await process.stdout.readline()).decode()
        assert f"node {name}#" in line, (line, await process.stderr.read())
        return process


@pytest.fixture(params=some([TCP, ""], TCP), ids=["tcp", "ipc"])
async def rig(request, tmp_path) -> AsyncIterator[Rig]:
    made = Rig(request.param, tmp_path)
    async with made.cluster:
        yield made
        for process in made.processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
    assert not (tmp_path / "sockets").exists()


@claim("A node joins a cluster with a one-time token, and a removed member stays out", of="actor-runtime")
@pytest.mark.system
async def test_a_node_from_another_terminal(rig, until, caplog):
    from cluster_entries import Counter, CounterConfig

    cluster = rig.cluster
    process = await rig.joined("hand")
    await until(lambda: "hand" in cluster.node.peers())
    assert cluster.hub.members()["hand"].joined
    ref = await cluster.node.spawn(Counter, name="counter", on="hand", args=(CounterConfig(3),))
    assert await ref.add(1) == 4
    assert await ref.ask("w0/counter", 2) == 2, "it knows those that were there"
    assert await cluster.node.ref("w0/counter").ask("hand/counter", 2) == 6, "and they know it"
    await until(lambda: cluster.node.peers()["hand"].heartbeat.actors >= 1)

    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"leaves: SIGINT was received" in out
    await until(lambda: rig.downs != [])
    assert rig.downs == [Down("hand", 1, "left")]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [], "it left in order"

    second = await rig.joined("hand")
    await until(lambda: "hand" in cluster.node.peers())
    assert cluster.node.peers()["hand"].incarnation == 2
    second.kill()
    await until(lambda: len(rig.downs) == 2)
    assert (rig.downs[1].incarnation, rig.downs[1].cause.split()[0]) == (2, "disconnected")
    with pytest.raises(RemoteError, match="hand#2 is down"):
        await cluster.node.ref("w0/counter").ask("hand/counter", 2)

    third = await rig.joined("hand")
    await until(lambda: "hand" in cluster.node.peers())
    await cluster.hub.kill("hand")
    assert rig.downs[2] == Down("hand", 3, "killed")
    out, _ = await third.communicate()
    assert third.returncode == 1, "it sees that it is fenced"
    refused = b"the head declared it down: refused: head#1 has given hand#3 up"
    assert b"leaves: " + (b"the head head#1 is down: disconnected" if rig.keyed else refused) in out

    fourth = await rig.joined("hand")
    await cluster.stop()
    out, _ = await fourth.communicate()
    assert fourth.returncode == 0 or b"is down: disconnected" in out


@pytest.mark.system
async def test_a_signal_right_after_a_node_says_that_it_has_joined(rig):
    node = await join(given(rig.cluster.invitation.split()[-1], NODE), name="hand")
    lines = []

    def report(line: str) -> None:
        if not lines:
            assert line == f"joined head#1 and listens at {node.endpoint}"
            signal.raise_signal(signal.SIGTERM)
        lines.append(line)

    assert await stay(node, report)
    assert lines[1:] == ["leaves: SIGTERM was received"]


@pytest.mark.system
async def test_who_is_not_admitted(rig, tmp_path):
    node = rig.cluster.node
    for name in ("w0", "head"):
        words = rig.cluster.invitation.split()[2:]
        process = await rig.command(*words, "--name", name)
        _, err = await process.communicate()
        assert process.returncode == 1
        assert f"has a node {name} already; choose another name" in err.decode()
    if not node.endpoint.startswith("tcp"):
        return
    spoilt = tmp_path / "spoilt"
    spoilt.write_text(rig.cluster.invite()[:-9])
    spoilt.chmod(0o600)
    used = rig.cluster.invite()
    await (await join(used, name="first")).stop()
    rig.cluster.invite()  # another is open, so that the door is
    wrong = Invitation(node.endpoint, "0" * 64).pack()
    for where, text, code, said in (
        (node.endpoint, "", 1, "cannot be joined"),
        ("-", "", 2, "standard input holds no invitation"),
        (f"@{spoilt}", "", 2, "cannot be read"),
        ("-", used, 1, "the invitation is used, expired or invalid"),
        ("-", wrong, 1, "the invitation is used, expired or invalid"),
    ):
        process = await rig.command("--join", where, "--name", "hand", stdin=asyncio.subprocess.PIPE)
        _, err = await process.communicate(text.encode() + b"\n")
        assert (process.returncode, err.decode().count("\n")) == (code, 1), err
        assert said in err.decode()
        assert Invitation.parse(used).secret not in err.decode()
    assert set(node.peers()) == {"w0"}
    assert stat.S_IMODE((tmp_path / "sockets" / "invitation.keys").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"cannot be read \(No such file or directory\); copy the invitation again"),
        (b"", "holds no invitation"),
        (b"w1-dGNwOi8vMTI3LjAuMC4xOjkgMDAw", "holds no invitation"),  # its first letter was not copied
        (b"\xff\xfeb\x00w\x001\x00", "holds no invitation"),
    ],
)
def test_what_holds_no_invitation_is_not_repeated(tmp_path, monkeypatch, content, said):
    path = tmp_path / "invitation.txt"
    if content is not None:
        path.write_bytes(content)
        monkeypatch.setattr("sys.stdin", io.StringIO(content.decode("latin-1")))
        with pytest.raises(AddressError, match="standard input holds no invitation"):
            given("-", NODE)
    with pytest.raises(AddressError, match=said) as refused:
        given(f"@{path}", NODE)
    assert str(path) in str(refused.value)
    with pytest.raises(AddressError, match="make one with blockwright keys join, or with serve --join-file"):
        given(f"@{path}", WORKER)
    assert "dGNw" not in str(refused.value)


def test_a_worker_takes_join_texts_alone(tmp_path, monkeypatch):
    path, invitation = tmp_path / "text", Invitation("tcp://127.0.0.1:9", "0" * 64).pack()
    for content in ("", invitation, "tcp://127.0.0.1:9"):
        path.write_text(content)
        with pytest.raises(AddressError, match=r"that file holds no join text \(it would begin with bwj1-\); make one"):
            given(f"@{path}", WORKER)
        monkeypatch.setattr("sys.stdin", io.StringIO(content))
        with pytest.raises(AddressError, match=r"--join is '-', but standard input holds no join text"):
            given("-", WORKER)


def test_an_invitation_as_editors_and_mail_leave_it(tmp_path, monkeypatch):
    path, invitation = tmp_path / "invitation.txt", Invitation("tcp://127.0.0.1:9", "0" * 64).pack()
    path.write_bytes(b"\xef\xbb\xbf " + invitation.encode() + b"\r\n\r\n")
    assert given(f"@{path}", NODE) == invitation
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{invitation}\r\nmore"))
    assert given("-", NODE) == invitation
    assert given("ipc:///x", NODE) == "ipc:///x"


@pytest.mark.system
async def test_joining_from_a_program(rig, until, monkeypatch):
    cluster, watched = rig.cluster, []
    monkeypatch.setattr(SocketTransport, "watch", lambda self, seconds: watched.append((self.peer.name, seconds)))
    keyed = cluster.node.endpoint.startswith("tcp")
    node = await join(cluster.invite() if keyed else cluster.node.endpoint, name="hand")
    await until(lambda: "w0" in node.peers())
    assert await node.ref("w0/counter").add(2) == 2
    assert watched == ([("hand", CUT_OFF * 30.0)] if keyed else []), "ways to others are cut where a network parts it"
    await node.stop()
    await until(lambda: rig.downs != [])
    assert rig.downs == [Down("hand", 1, "left")]
    with pytest.raises(KeysError, match="can be reached from other machines; join it with an invitation"):
        await join("tcp://192.0.2.1:9", name="hand")
    if keyed:
        taken = cluster.node.endpoint.partition("?")[0]
        with pytest.raises(AddressError) as refused:
            await join(cluster.invite(), name="hand", listen=taken)
        assert str(refused.value) == (
            f"cannot listen on {taken}: Address already in use; choose another --listen tcp://HOST:PORT"
        )


@claim("A node joins a cluster with a one-time token, and a removed member stays out", of="actor-runtime")
@pytest.mark.system
async def test_a_member_that_is_removed_stays_out(rig, until):
    from cluster_entries import CounterConfig  # noqa: F401 - what the entry of w0 needs

    cluster = rig.cluster
    if not cluster.node.endpoint.startswith("tcp"):
        return
    token = cluster.invite()
    node = await join(token, name="hand")
    await until(lambda: "w0" in node.peers() and "hand" in cluster.node.peers())
    assert await node.ref("w0/counter").add(2) == 2
    await cluster.remove("hand")
    assert rig.downs == [Down("hand", 1, "removed")]
    await node.closed.wait()

    async def refused() -> bool:
        try:
            await node.ref("w0/counter").add(2)
        except NodeDown:
            return True
        return False

    await until(refused)  # w0 may hear of it later than the node itself
    keys, wanted = node._transport._keys, [(cluster.node.id, cluster.node.endpoint)]
    wanted.append((cluster.node.peers()["w0"].id, cluster.node.peers()["w0"].endpoint))
    await node.stop()
    for at, (peer, endpoint) in enumerate(wanted):  # with the key that it had
        again = Node("hand", incarnation=at + 5, listen="tcp://127.0.0.1:0", keys=keys)
        await again.start()
        again.peering.greet(peer, endpoint)
        await until(lambda again=again: again.peers() == {})
        assert "does not take this node's key" in again.table.last_down[peer.name].cause
        await again.stop()
    with pytest.raises((HandshakeRefused, PeerGone)):
        await join(token, name="hand")
    await (await join(cluster.invite(), name="hand")).stop()


async def test_an_invitation_is_over_in_time():
    clock = ManualClock()
    hub = ClusterHead("head", launcher=InProcessLauncher(clock=clock), clock=clock, keys=NodeKeys.generate())
    await hub.start()
    early, late = [Invitation.parse(hub.invite(seconds)).secret for seconds in (10.0, 20.0)]
    clock.advance(10.0)
    with pytest.raises(HandshakeRefused, match="is used, expired or invalid"):
        hub.join("hand", "ab" * 32, early)
    with pytest.raises(HandshakeRefused, match="has a node head already"):
        hub.join("head", "ab" * 32, late)
    assert hub.join("hand", "ab" * 32, late).own == PeerId("hand", 1), "a name that is taken used nothing up"
    with pytest.raises(HandshakeRefused, match="is used, expired or invalid"):
        hub.join("other", "cd" * 32, late)
    assert not hub._invitations.any(clock.now())
    await hub.stop()


async def test_where_nobody_is(tmp_path):
    for address in ("tcp://127.0.0.1:9", f"ipc://{tmp_path}/head-1.sock"):
        with pytest.raises(PeerGone, match="cannot be joined: disconnected before an answer came; is there the head"):
            await join(address, name="hand")
    for address in ("http://x", "tcp://x", "ipc://@abstract"):
        with pytest.raises(AddressError):
            await join(address, name="hand")


async def test_a_node_that_is_no_head_admits_nobody(tmp_path):
    node = Node("alone", directory=tmp_path / "sockets")
    await node.start()
    with pytest.raises(HandshakeRefused, match="node alone#1 is not the head of a cluster"):
        await join(node.endpoint, name="hand")
    await node.stop()


def test_names_by_default_can_be_used(monkeypatch):
    for host in ("box", "-", "", "x" * 200, "büro.example"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert check_name(default_name())


async def test_numbers_given_to_those_that_ask():
    clock = ManualClock()
    hub = ClusterHead("head", launcher=InProcessLauncher(clock=clock), clock=clock, heartbeat=0.25, startup=10.0)
    await hub.start()
    downs: list[Down] = []
    hub.on_down(downs.append)
    assert hub.join("hand") == Admission(PeerId("head", 1), PeerId("hand", 1), 0.25, 2.5)
    assert hub.join("hand").own == PeerId("hand", 2), "it asks again: the first answer was lost"
    assert downs == [Down("hand", 1, "asked for another number")]
    assert not hub.admits(PeerId("hand", 1))
    assert hub.admits(PeerId("hand", 2))
    for _ in range(90):
        clock.advance(0.125)
    assert downs[1:] == [Down("hand", 2, "not up within 10 s")]
    with pytest.raises(HandshakeRefused, match="has a node head already"):
        hub.join("head")
    await hub.stop()
    with pytest.raises(HandshakeRefused, match="is stopping"):
        hub.join("hand")


async def test_a_name_without_an_address_is_said_at_once(monkeypatch):
    async def fail(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail, raising=False)
    keyed = f"?key={'a' * 64}"
    with pytest.raises(PeerGone) as refused:
        await join(Invitation(f"tcp://nowhere.invalid:7000{keyed}", "0" * 64).pack(), name="hand")
    assert str(refused.value) == (
        "tcp://nowhere.invalid:7000 cannot be joined: this machine finds no address of nowhere.invalid "
        "(Name or service not known); check the name"
    )

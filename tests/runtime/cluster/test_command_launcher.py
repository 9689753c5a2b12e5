"""Commands as launchers of nodes: the text on standard input, the end of a command, its last words, and its pipe."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blockwright.policies.cluster.launching import LaunchTemplate, TemplateError
from blockwright.runtime import Down
from blockwright.runtime.base.errors import NodeDown
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.command_launcher import CommandLauncher
from blockwright.runtime.cluster.further_launcher import FurtherLauncher
from blockwright.runtime.cluster.holder import LONGEST_WORDS
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.join_text import LAUNCHED, NODE, WORKER, JoinText, JoinTexts
from blockwright.runtime.cluster.launcher import LaunchError, Needs, NodeSpec
from blockwright.tests.claims import claim
from blockwright.tests.runtime.cluster.holding import HolderProcess
from blockwright.tests.waiting import until
from blockwright.transport.address import PeerId
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import AddressError, HandshakeRefused

pytestmark = pytest.mark.system
IDLE = "blockwright.runtime.cluster.node_process:idle"


def spec(name: str, incarnation: int = 1, text: str = "the text", **needs: int) -> NodeSpec:
    return NodeSpec(
        name=name, incarnation=incarnation, entry="", config=[], head="head#1", head_endpoint="", directory="",
        heartbeat=1.0, join_text=text, needs=Needs(**needs),
    )  # fmt: skip


class Rig:
    """A launcher of shell commands, and the ends that it has reported."""

    def __init__(self, process: HolderProcess, script: str, hosts: str = "") -> None:
        self.ends: list[tuple[PeerId, int]] = []
        template = LaunchTemplate(f"sh -c '{script}' {'{host}' if hosts else 'sh'}")
        self.launcher = CommandLauncher(template, hosts.split(), process.holder)
        process.users.append(self.launcher)

    async def spawn(self, what: NodeSpec) -> int:
        await self.launcher.start(lambda *end: self.ends.append(end))
        return await self.launcher.spawn(what)


async def test_a_command_reads_the_text_and_ends_when_its_pipe_closes(process: HolderProcess, tmp_path: Path) -> None:
    rig = Rig(process, f"head -n 1 > {tmp_path}/text; cat > {tmp_path}/rest; exit 3")
    pid = await rig.spawn(spec("w1"))
    assert rig.launcher.list() == {PeerId("w1", 1): pid}
    await until(lambda: (tmp_path / "rest").exists(), "it has read the text")
    assert ((tmp_path / "text").read_text(), rig.ends) == ("the text\n", [])
    rig.launcher._held.close("w1#1")
    await until(lambda: rig.ends, "its end is reported")
    assert (rig.ends, rig.launcher.list()) == ([(PeerId("w1", 1), 3)], {})
    await rig.launcher.stop()


async def test_the_next_head_goes_on_with_commands_that_run_and_with_their_hosts(process: HolderProcess) -> None:
    first = Rig(process, "cat > /dev/null", "a b")
    pid = await first.spawn(spec("w1"))
    await first.launcher.leave()
    second = Rig(process, "cat > /dev/null", "a b")
    await second.spawn(spec("w2"))
    assert (second.launcher.list()[PeerId("w1", 1)], second.launcher._placed) == (pid, {"w1#1": "a", "w2#1": "b"})
    second.launcher.kill(PeerId("w1", 1))
    await until(lambda: second.ends, "its end is reported")
    assert (second.ends, first.ends) == ([(PeerId("w1", 1), -signal.SIGKILL)], [])
    await second.launcher.stop()


async def test_what_a_node_needs_is_filled_in(process: HolderProcess, tmp_path: Path) -> None:
    template = LaunchTemplate(f"sh -c 'echo $@ > {tmp_path}/got' sh {{name}} {{cores}} {{bytes}} {{devices}}")
    launcher, ends = CommandLauncher(template, [], process.holder), list[int]()
    process.users.append(launcher)
    await launcher.start(lambda _, status: ends.append(status))
    await launcher.spawn(spec("w7", cores=4, bytes=1 << 30, devices=2))
    await until(lambda: ends == [0], "it has ended")
    assert (tmp_path / "got").read_text() == "w7 4 1073741824 2\n"


async def test_the_last_line_of_a_command_that_ends_is_kept_once(
    process: HolderProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(process, 'echo first; echo >&2; printf %400s x | tr " " y >&2; exit 255')
    await rig.spawn(spec("w1"))
    await until(lambda: rig.ends, "its end is reported")
    node = PeerId("w1", 1)
    assert rig.ends == [(node, 255)]
    assert (rig.launcher.last_words(node), rig.launcher.last_words(node)) == ("y" * LONGEST_WORDS, "")
    assert capfd.readouterr().err.splitlines()[:1] == ["first"], "what it prints is passed on"


async def test_a_line_without_an_end_is_no_harm(process: HolderProcess) -> None:
    rig = Rig(process, 'head -c 200000 /dev/zero | tr "\\0" y; echo; echo last; exit 1')
    await rig.spawn(spec("w1"))
    await until(lambda: rig.ends, "its end is reported")
    assert rig.launcher.last_words(PeerId("w1", 1)) == "last"


async def test_all_that_a_command_leaves_behind_is_killed(process: HolderProcess, tmp_path: Path) -> None:
    rig = Rig(process, f"sleep 1000 & echo $! > {tmp_path}/child; exit 0")
    await rig.spawn(spec("w1"))
    await until(lambda: rig.ends, "its end is reported")
    child = int((tmp_path / "child").read_text())
    await until(lambda: not alive(child), "the rest of its group has ended")
    rig = Rig(process, f"sleep 1000 & echo $! > {tmp_path}/next; wait")
    await rig.spawn(spec("w1", 2))
    await until(lambda: (tmp_path / "next").exists() and (tmp_path / "next").read_text(), "it runs")
    rig.launcher.kill(PeerId("w1", 1))
    assert rig.ends == [], "a life that is over"
    await rig.launcher.stop()
    assert rig.ends == [(PeerId("w1", 2), -signal.SIGKILL)]
    child = int((tmp_path / "next").read_text())
    await until(lambda: not alive(child), "its child has ended")


async def test_a_program_that_is_not_there_is_said_and_holds_no_host(process: HolderProcess) -> None:
    launcher = CommandLauncher(LaunchTemplate("no-such-program {host}"), ["a", "b"], process.holder)
    process.users.append(launcher)
    for _ in range(3):
        with pytest.raises(
            LaunchError, match=r"node w1#1 could not be started: no-such-program cannot be run \(No such file"
        ):
            await launcher.spawn(spec("w1"))
    assert (launcher.list(), launcher._hosts.choose()) == ({}, "a")


def test_hosts_without_a_place_for_them_are_refused() -> None:
    with pytest.raises(TemplateError, match=r"has no \{host\}, but there are hosts"):
        CommandLauncher(LaunchTemplate("srun worker"), ["a"], HolderProcess().holder)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


# in a cluster


class Elsewhere(InProcessLauncher):
    """A launcher of nodes that join by a text: nothing runs, and the test plays the process."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[NodeSpec] = []
        self.killed: list[PeerId] = []
        self.words = ""

    def joins(self, name: str) -> bool:
        return name.startswith("w")

    async def spawn(self, spec: NodeSpec) -> int:
        self.specs.append(spec)
        return 7

    def kill(self, node: PeerId) -> None:
        self.killed.append(node)
        self._on_exit(node, -9)

    def last_words(self, node: PeerId) -> str:
        return self.words

    def end(self, status: int) -> None:
        self._on_exit(self.specs[-1].id, status)


@pytest.fixture
async def launched() -> AsyncIterator[tuple[ClusterHead, Elsewhere]]:
    keys, launcher = NodeKeys.generate(), Elsewhere()
    hub = ClusterHead(
        "head", launcher=launcher, keys=keys, join_texts=JoinTexts(keys), listen="tcp://127.0.0.1:0", silence=1e6
    )
    launcher.head_transport = CommandLauncher(LaunchTemplate("x"), [], launcher.holder).head_transport  # type: ignore[method-assign]
    await hub.start()
    try:
        yield hub, launcher
    finally:
        await hub.stop()


@claim("A join text of a launched worker is for one life of it alone", of="security")
async def test_a_text_is_for_one_life_of_a_node(launched: tuple[ClusterHead, Elsewhere]) -> None:
    hub, launcher = launched
    downs: list[Down] = []
    hub.on_down(downs.append)
    assert await hub.launch("w1", IDLE, None) == 1
    first = JoinText.parse(launcher.specs[0].join_text)
    assert (first.role, launcher.specs[0].keys) == (LAUNCHED, []), "it makes its own keys"
    first.check_role(WORKER)
    with pytest.raises(AddressError, match="the join text admits the role launched, and this is a node"):
        first.check_role(NODE)
    for name in ("any", "w1", "any"):  # asked again by a process whose answer was lost
        assert hub.join(name, "a" * 64, first.ticket).own == PeerId("w1", 1)
    assert (hub.role("w1"), list(hub.members())) == (LAUNCHED, ["w1"])
    launcher.words = "ssh: no route to host"
    launcher.end(255)
    assert [(down.node, down.cause) for down in downs] == [("w1", "exited 255: ssh: no route to host")]
    assert await hub.launch("w1", IDLE, None) == 2
    with pytest.raises(HandshakeRefused, match=f"the join text {first.id} was for one life of a worker, which has ended"):
        hub.join("any", "a" * 64, first.ticket)
    second = JoinText.parse(launcher.specs[1].join_text)
    assert hub.join("any", "a" * 64, second.ticket).own == PeerId("w1", 2)
    await hub.kill("w1")
    assert launcher.killed[-1] == PeerId("w1", 2)
    with pytest.raises(NodeDown):
        await hub.wait_up("w1")


async def test_without_join_texts_nothing_is_launched_elsewhere() -> None:
    hub = ClusterHead("head", launcher=Elsewhere())
    await hub.start()
    with pytest.raises(LaunchError, match="node w1#1 joins from elsewhere, but this cluster has no join texts"):
        await hub.launch("w1", IDLE, None)
    await hub.stop()


async def test_further_workers_go_elsewhere_and_the_rest_stays_here() -> None:
    local, further = InProcessLauncher(), Elsewhere()
    ends: list[tuple[PeerId, int]] = []
    launcher = FurtherLauncher(local, further, ["w1"], Needs(cores=3))
    await launcher.start(lambda *end: ends.append(end))
    assert (launcher.places, launcher.directory) == (True, "")
    assert [launcher.joins(name) for name in ("w0", "w1")] == [False, True]
    assert await launcher.spawn(spec("w1")) == 7
    assert further.specs[0].needs == Needs(cores=3)
    further.words = "gone"
    assert [launcher.last_words(PeerId(name, 1)) for name in ("w0", "w1")] == ["", "gone"]
    launcher.kill(PeerId("w1", 1))
    launcher.kill(PeerId("w0", 1))
    assert (further.killed, ends) == ([PeerId("w1", 1)], [(PeerId("w1", 1), -9)])
    await launcher.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}

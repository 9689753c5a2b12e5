"""Workers that join by themselves, over the real runtime in one process: taken in, refused, dismissed, and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors import member_calls, members
from blockwright.actors.member_calls import HeadLost, JoinRefused, enlist, leave, look
from blockwright.actors.members import RELEASE, WorkerWish, joined_config, label_refusal, release_refusal
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.topology import Running, start
from blockwright.actors.worker.starting import Starting
from blockwright.policies.cluster.worker_size import WorkerReading
from blockwright.runtime import Node
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.join_text import JoinTexts
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.actors import fake_worker
from blockwright.tests.actors.joining_rig import LATER, JoiningNodes
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until
from blockwright.tests.worker_config import worker_config

GIB = 1 << 30


def machine(host: str) -> WorkerReading:
    return WorkerReading(machine=host, host=host, device="cpu", cores=4, free_memory=10 * GIB, where=f"on {host}")


class Joining(JoiningNodes):
    """A cluster with one worker of its own, which takes workers in."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(InProcessLauncher(), JoinTexts(make_keys(folder / "keys")))
        self.settings = Settings(
            applications={"m": str(checkpoint)}, workers=1, heartbeat=0.02, silence=PATIENCE, memory=32 << 20,
            listen="tcp://127.0.0.1:0", head_keys=str(folder / "keys"),
        )  # fmt: skip
        self.running: Running

    async def node(self, name: str, role: str = "worker") -> Node:
        return await super().node(name, role)

    async def worker(self, name: str, **labels: str) -> Node:
        """A worker that has been taken in and is up."""
        fake_worker.FATE.machines[name] = machine(f"host of {name}")
        node = await self.node(name)
        config = await enlist(node, Starting("", labels=labels))
        await fake_worker.start(node, config)
        node.peering.announce_ready()
        return node

    async def workers(self) -> dict[str, Any]:
        return {one["id"]: one for one in (await self.running.controller.cluster())["workers"]}

    async def serving(self) -> set[str]:
        routes = (await self.running.controller.cluster())["routes"]
        return {hop["worker"] for route in routes for hop in route["hops"]}


@pytest.fixture
async def joining(tmp_path: Path, checkpoint: Callable[..., Path]) -> AsyncIterator[Joining]:
    fake_worker.reset().machines["w0"] = machine("first")
    made = Joining(tmp_path, checkpoint())
    entry = "blockwright.tests.actors.fake_worker:start"
    made.running = await start(made.settings, launcher=made.launcher, in_process=True, worker_entry=entry)
    made.cluster = made.running.cluster
    try:
        async with asyncio.timeout(PATIENCE):
            yield made
    finally:
        await made.leave()
        await made.running.stop()


async def test_a_worker_is_taken_in_shown_and_dismissed_when_it_is_empty(joining: Joining) -> None:
    node = await joining.worker("far", zone="b")

    async def both() -> bool:
        return await joining.serving() == {"w0", "far"}

    async def alone() -> bool:
        return list(await joining.workers()) == ["w0"]

    await until(both, "it serves")
    view = (await joining.workers())["far"]
    assert (view["host"], view["labels"], view["joined"]) == ("host of far", {"zone": "b"}, True)
    await leave(node, "SIGTERM was received")
    await node.closed.wait()
    assert (node.dismissed.is_set(), node.farewell) == (True, "the head stopped it")
    await until(alone, "the head forgets it")
    texts = [event["text"] for event in (await joining.running.controller.cluster())["events"]]
    assert {"worker far has joined", "worker far is drained: SIGTERM was received", "worker far has left"} <= {*texts}


async def test_a_worker_that_is_lost_may_come_again_under_its_name(joining: Joining) -> None:
    node = await joining.worker("far")
    joining.launcher.network.cut(node.endpoint)
    await until(lambda: joining.running.cluster.members()["far"].state == "down", "its life is over")
    again = await joining.worker("far")
    assert again.incarnation == 2

    async def lives() -> bool:
        one = (await joining.workers()).get("far", {})
        return (one.get("incarnation"), one.get("state")) == (2, "ready")

    await until(lives, "the second life serves")
    assert not again.closed.is_set(), "what ended the first life does not end the second"


@claim("A worker that may not join is refused with a sentence, and nothing changes", of="serving")
async def test_who_is_not_taken_in(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = await joining.node("plain", role="node")
    with pytest.raises(JoinRefused, match="plain has not joined as a worker; make a join text with --role worker"):
        await enlist(plain, Starting(""))
    actor = await joining.node("controller")
    with pytest.raises(JoinRefused, match="the head has an actor of the name controller; choose another --name"):
        await enlist(actor, Starting(""))
    own = await joining.node("g1")
    far = await joining.node("far")
    with pytest.raises(JoinRefused, match="33 labels are given; give at most 32"):
        await enlist(far, Starting("", labels={str(n): "" for n in range(33)}))
    monkeypatch.setattr(member_calls, "RELEASE", "<newest>")
    with pytest.raises(JoinRefused, match=f"'<newest>' is no version of blockwright; install {RELEASE} here"):
        await enlist(own, Starting(""))
    assert list(await joining.workers()) == ["w0"]


async def test_who_looks_learns_the_release_and_the_clock(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await joining.node("far")
    monkeypatch.setattr(members, "time", _Clock())
    why, ahead = await look(node)
    assert why == ""
    assert ahead > LATER / 8, "its clock stands at the beginning"
    monkeypatch.setattr(member_calls, "ANSWER", 0.0)
    with pytest.raises(JoinRefused, match=r"no answer of the head came to .* open that port to the head, or give --listen"):
        await look(node)
    monkeypatch.undo()
    joining.launcher.network.cut(node.endpoint)
    with pytest.raises(HeadLost, match=r"the head was lost before it took this node in: .*; start this node again"):
        await look(node)


class _Clock:
    @staticmethod
    def time() -> float:
        return 0.0


def test_a_worker_gets_the_configuration_of_the_others_but_for_what_it_wants() -> None:
    config = worker_config()
    same = joined_config(config, "far", WorkerWish())
    assert same == replace(config, name="far", sharing=1, joined=True)
    made = joined_config(config, "far", WorkerWish(99, 3, "auto", "a,b"))
    assert (made.worker_memory.memory, made.worker.threads, made.worker.device) == (99, 3, "auto")
    assert made.sources.folders == ["a", "b"]


def test_labels_and_releases() -> None:
    assert (release_refusal(RELEASE), release_refusal("99.1.0"), label_refusal({"zone": "b"})) == ("", "", "")
    for text in ("", "x" * 65, "new", "1\n", "1" * 41):
        assert release_refusal(text).endswith(f"is no version of blockwright; install {RELEASE} here")
    assert label_refusal({"zone": "b" * 129}).endswith("is longer than 128 characters; shorten it")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "tcp://10.0.0.5:7000"}, "listen is tcp://10.0.0.5:7000, but head_keys is empty; make keys with"),
        ({"join_file": "x"}, "join_file is set, but the head listens nowhere; give --listen"),
        ({"listen": "tcp://h:1", "head_keys": "k", "revoked_joins": "0123456789ab,zzz"}, "revoked_joins names 'zzz', which"),
        ({"listen": "tcp://h:1", "head_keys": "k", "revoked_joins": ","}, "revoked_joins names ',', which is no id"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings(applications={"m": "x"}, **settings)


async def test_where_the_head_cannot_listen(tmp_path: Path, checkpoint: Callable[..., Path]) -> None:
    def chosen(**settings: Any) -> Settings:
        return Settings(applications={"m": str(checkpoint())}, **settings)

    make_keys(tmp_path / "keys")
    keys = str(tmp_path / "keys")
    for settings, said in (
        ({"listen": "tcp://127.0.0.1:0", "head_keys": str(tmp_path / "none")}, "head_keys: .* holds no keys to read"),
        ({"listen": "tcp://0.0.0.0:0", "head_keys": keys}, "listen: .* stands for every address of this machine"),
        ({"listen": "nowhere", "head_keys": keys}, "listen: 'nowhere' is not of the form tcp://HOST:PORT"),
    ):
        with pytest.raises(SettingsError, match=said):
            await start(chosen(**settings))
    with contextlib.closing(_taken()) as held:
        port = held.getsockname()[1]
        with pytest.raises(SettingsError, match=r"listen: cannot listen on .* choose another --listen tcp://HOST:PORT"):
            await start(chosen(listen=f"tcp://127.0.0.1:{port}", head_keys=keys))
    with pytest.raises(SettingsError, match=r"join_file: .* cannot be written .* name a file in a folder to write to"):
        await start(chosen(listen="tcp://127.0.0.1:0", head_keys=keys, join_file=str(tmp_path / "no" / "file")))


def _taken() -> Any:
    import socket

    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    return held

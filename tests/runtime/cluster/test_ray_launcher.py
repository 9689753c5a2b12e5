"""Ray as a launcher, without Ray: the head's side with a driver that is played, and the driver with a Ray that is.

With Ray: tests/system/test_ray.py.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.runtime.cluster import ray_driver, ray_launcher
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.runtime.cluster.ray_driver import Driver, RayWorker, resources
from blockwright.runtime.cluster.ray_launcher import RayLauncher
from blockwright.tests.runtime.cluster.holding import HolderProcess
from blockwright.tests.runtime.cluster.test_command_launcher import spec
from blockwright.tests.waiting import until
from blockwright.transport.address import PeerId

pytestmark = pytest.mark.system
W1, W2 = PeerId("w1", 1), PeerId("w2", 1)
# A driver: w1 starts with its text's length as process id and ends when it is killed, w2 has no room; "die" ends it all.
PLAYED = """
import json, sys
def say(**said): print(json.dumps(said), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "kill":
        say(event="ended", actor=order["actor"], status=-9, words="killed it")
    elif order["do"] == "tell":
        say(event="actors", actors={"w1-1": 8, "w2-1": 0})
    elif order["text"] == "die":
        sys.exit(7)
    elif order["actor"].startswith("w1"):
        say(event="started", actor=order["actor"], pid=len(order["text"]))
    else:
        say(event="ended", actor=order["actor"], status=-9, words="no room for " + str(order["needs"]["cores"]))
"""
REFUSED = """
import json
print(json.dumps({"event": "refused", "why": "no Ray cluster can be used on this machine"}))
"""


class Rig:
    """A launcher whose driver is played, and the ends that it has reported."""

    def __init__(self, process: HolderProcess, monkeypatch: pytest.MonkeyPatch, program: str = PLAYED) -> None:
        monkeypatch.setattr(ray_launcher, "PROGRAM", program)
        self.ends: list[tuple[PeerId, int]] = []
        self.launcher = RayLauncher("", process.holder)
        process.users.append(self.launcher)

    async def start(self) -> RayLauncher:
        await self.launcher.start(lambda *end: self.ends.append(end))
        return self.launcher


async def test_workers_start_and_end_as_the_driver_says(process: HolderProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(process, monkeypatch)
    launcher = await rig.start()
    assert await launcher.spawn(spec("w1")) == len("the text")
    with pytest.raises(LaunchError, match="node w2#1 could not be started: no room for 3"):
        await launcher.spawn(spec("w2", cores=3))
    assert (launcher.list(), launcher.joins("w1"), launcher.places) == ({W1: 8}, True, True)
    launcher.kill(W2)
    launcher.kill(W1)
    await until(lambda: rig.ends, "its end is reported")
    assert (rig.ends, launcher.last_words(W1), launcher.last_words(W1)) == ([(W1, -9)], "killed it", "")
    await launcher.stop()
    with pytest.raises(LaunchError, match="the launcher was stopped"):
        await launcher.spawn(spec("w1", 2))


async def test_a_driver_that_ends_takes_its_workers_along_and_is_started_again(
    process: HolderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(process, monkeypatch)
    launcher = await rig.start()
    await launcher.spawn(spec("w1"))
    with pytest.raises(LaunchError, match="node w2#1 could not be started: the driver of Ray ended with 7"):
        await launcher.spawn(spec("w2", text="die"))
    assert (rig.ends, launcher.list()) == ([(W1, -9)], {})
    assert launcher.last_words(W1) == "the driver of Ray ended with 7, and its workers with it"
    assert await launcher.spawn(spec("w1", 2)) == 8
    await launcher.stop()
    await launcher.stop()


async def test_the_next_head_takes_over_the_driver_and_what_has_started(
    process: HolderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await Rig(process, monkeypatch).start()
    await first.spawn(spec("w1"))
    await first.leave()
    rig = Rig(process, monkeypatch)
    launcher = await rig.start()
    assert (launcher.list(), rig.ends) == ({W1: 8}, [(W2, -9)]), "w2 had only begun, with a text of the head before"
    launcher.kill(W1)
    await until(lambda: len(rig.ends) == 2, "its end is reported")
    assert rig.ends[1] == (W1, -9)
    await launcher.stop()


async def test_a_driver_that_does_not_answer_the_next_head_is_ended(
    process: HolderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_launcher, "TELLING", 0.0)
    first = await Rig(process, monkeypatch).start()
    await first.spawn(spec("w1"))
    await first.leave()
    rig = Rig(process, monkeypatch)
    launcher = await rig.start()
    assert launcher.list() == {}
    assert await launcher.spawn(spec("w1", 2)) == 8
    await launcher.stop()


async def test_a_ray_cluster_that_is_not_there_is_said(process: HolderProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = await Rig(process, monkeypatch, REFUSED).start()
    with pytest.raises(LaunchError, match="w1#1 could not be started: no Ray cluster can be used on this machine"):
        await launcher.spawn(spec("w1"))
    await launcher.stop()


# the driver


class PlayedError(Exception):
    """An error of Ray."""


class PlayedRay:
    """The part of Ray that the driver uses: two nodes, and actors that a test ends."""

    def __init__(self, *, room: bool = True) -> None:
        self.exceptions = SimpleNamespace(RayError=PlayedError)
        self.util = SimpleNamespace(
            placement_group=self._group,
            remove_placement_group=lambda group: self.removed.append(group.name),
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, **_: group),
        )
        self.room = room
        self.groups: list[Any] = []
        self.options: list[dict[str, Any]] = []
        self.killed: list[str] = []
        self.removed: list[str] = []
        self.lives: dict[str, asyncio.Future[tuple[int, str]]] = {}

    def _group(self, bundles: Any, *, name: str, _soft_target_node_id: str, **more: Any) -> Any:
        ready = asyncio.get_running_loop().create_future()
        if self.room:
            ready.set_result(None)
        self.groups.append(
            SimpleNamespace(name=name, bundles=bundles, target=_soft_target_node_id, ready=lambda: ready, **more)
        )
        return self.groups[-1]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": name != "gone"} for name in ("gone", "a", "b")]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0, "object_store_memory": 9.0}

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            self.options.append(given)
            return SimpleNamespace(remote=lambda: self._actor(given["name"], given["scheduling_strategy"].target))

        return SimpleNamespace(options=options)

    def _actor(self, name: str, node: str) -> Any:
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[tuple[int, str]] = loop.create_future()
        begun.set_result((7, node))
        self.lives[name] = loop.create_future()
        begin, follow = (lambda *_: begun), (lambda: self.lives[name])
        return SimpleNamespace(name=name, begin=SimpleNamespace(remote=begin), follow=SimpleNamespace(remote=follow))

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.name)
        if not self.lives[actor.name].done():
            self.lives[actor.name].set_exception(PlayedError("The actor died\nmore"))


class Driven:
    """A driver with a Ray that is played, and its orders and answers."""

    def __init__(self, **how: Any) -> None:
        self.ray, self.said = PlayedRay(**how), list[dict[str, Any]]()
        self._orders = asyncio.StreamReader()
        self._task = asyncio.create_task(Driver(self.ray, lambda **said: self.said.append(said)).run(self._orders))

    def order(self, actor: str, do: str = "spawn", **needs: Any) -> None:
        whole = {"cores": 0, "bytes": 0, "devices": 0, "labels": {}, **needs}
        self._orders.feed_data(json.dumps({"do": do, "actor": actor, "text": "t", "needs": whole}).encode() + b"\n")

    async def ended(self, name: str, found: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The answer that an actor has ended."""
        mine = lambda: [one for one in self.said if one["actor"] == name and one["event"] == "ended"]  # noqa: E731
        await until(mine, f"the end of {name}")
        return mine()[0]

    async def stop(self) -> None:
        self._orders.feed_eof()
        await self._task


async def test_workers_are_placed_apart_and_their_ends_said() -> None:
    driven = Driven()
    ray = driven.ray
    for name in ("w1-1", "w2-1"):
        driven.order(name, cores=2, devices=1, bytes=5, labels={"zone": "b"})
    await until(lambda: len(driven.said) == 2, "both have started")
    assert driven.said == [{"event": "started", "actor": name, "pid": 7} for name in ("w1-1", "w2-1")]
    assert [group.target for group in ray.groups] == ["a", "b"]
    group, options = ray.groups[0], ray.options[0]
    assert (group.bundles, group.strategy) == ([{"CPU": 2.0, "memory": 5.0, "GPU": 1.0}], "STRICT_PACK")
    assert group.bundle_label_selector == [{"zone": "b"}]
    assert (options["num_cpus"], options["num_gpus"], options["max_restarts"], options["max_task_retries"]) == (
        2.0,
        1.0,
        0,
        0,
    )
    ray.lives["w1-1"].set_result((2, "it is refused"))
    assert await driven.ended("w1-1") == {"event": "ended", "actor": "w1-1", "status": 2, "words": "it is refused"}
    driven.order("w3-1")
    await until(lambda: len(ray.groups) == 3, "the next starts")
    assert (ray.groups[2].target, ray.removed, ray.groups[2].bundles) == ("a", ["w1-1"], [{"CPU": 1.0}])
    driven.order("w2-1", "kill")
    assert (await driven.ended("w2-1"))["words"] == "its Ray actor ended: The actor died"
    driven.order("w2-1", "kill")
    await driven.stop()
    assert (ray.killed, ray.removed) == (["w1-1", "w2-1", "w3-1"],) * 2


async def test_the_next_head_is_told_which_actors_there_are() -> None:
    driven = Driven()
    driven.order("w1-1")
    await until(lambda: driven.said, "it has started")
    driven.order("", "tell")
    await until(lambda: len(driven.said) == 2, "it tells")
    assert driven.said[1] == {"event": "actors", "actors": {"w1-1": 7}}
    await driven.stop()


async def test_no_room_is_said_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "PLACED", 0.0)
    driven = Driven(room=False)
    driven.order("w1-1", cores=64)
    found = await driven.ended("w1-1")
    assert found["words"].startswith(
        "no node of the Ray cluster had CPU 64 free within 0 s; all together have CPU 1 free; ask"
    )
    assert driven.ray.removed == ["w1-1"]
    await driven.stop()


def test_a_workers_process_ends_with_its_node_of_ray() -> None:
    worker = RayWorker()
    with subprocess.Popen(["sleep", "1000"], text=True) as worker._child:
        worker._end_with(-1)  # no process is a child of that one
    assert worker._child.returncode == -9


def test_a_worker_asks_for_a_core_at_least() -> None:
    assert resources({"cores": 0, "bytes": 0, "devices": 0}) == {"CPU": 1.0}

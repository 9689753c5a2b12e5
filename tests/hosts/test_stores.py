"""Workers on several hosts that have no checkpoint, beside a head that has none: everything comes by hash."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import confirm
from blockwright.tests.hosts.conftest import refusal
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import FAULTY
from blockwright.tests.system.faulty_worker import DIE, HOLD, OWN
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until
from blockwright.tests.zoo.served_folder import served_folder
from blockwright.zoo.add import add

pytestmark = [pytest.mark.system, pytest.mark.nightly]
STREAMS = 8
RATE = 400_000.0  # bytes a second on each way: a model takes seconds, so that all wait for it at the same time
SMALL = 200_000  # bytes of a store that is too small
OTHER = {"far2": {"sources": {"store_size": SMALL}}, "far3": {"worker": {"instruction_set": "generic"}}}


@pytest.fixture(scope="module")
def spread() -> Iterator[Hosts | None]:
    """A host for the head, one for each worker that joins, and one for the origin; None where tests run elsewhere."""
    if refusal():
        yield None
        return
    made = Hosts("head", "far1", "far2", "far3", "late", "origin")
    with made.at("head"):
        yield made
    made.close()


class Spread:
    """A head with one worker at the host "head", and workers that joined, each at a host of its name."""

    def __init__(self, hosts: Hosts, pace: Path, folder: Path, origin: str) -> None:
        self._hosts, self._folder = hosts, folder
        make_keys(folder / "keys")
        here = hosts.address("head")
        words = ["--host", here, "--listen", f"tcp://{here}:0", "--keys", str(folder / "keys")]
        words += ["--join-file", str(folder / "worker.join")]
        self.server = Server(Path("m"), module=FAULTY, pace=pace, workers=1, arguments=words, levers=[HOLD], origin=origin)
        self.server.lever(OWN).write_text(json.dumps({**OTHER, "w0": {"sources": {"store": str(folder / "head")}}}))
        self.server.lever(HOLD).unlink()
        self.far: dict[str, subprocess.Popen[bytes]] = {}

    def join(self, name: str, *, store: bool = True) -> None:
        words = ["worker", "--join", f"@{self._folder / 'worker.join'}", "--name", name]
        words += ["--store", str(self._folder / name)] if store else []
        with self._hosts.at(name):
            self.far[name] = self.server.beside(name, "-m", FAULTY, *words)

    def kill(self) -> None:
        for process in self.far.values():
            process.kill()
            process.wait(timeout=PATIENCE)


async def serving(client: Client) -> set[str]:
    status, view = await client.get("/admin/cluster")
    return {hop["worker"] for route in view["routes"] for hop in route["hops"]} if status == 200 else set()


def came_to(view: dict[str, Any]) -> float:
    """Bytes of parameters that a worker has from elsewhere."""
    counters = view["counters"]
    return float(counters.get("fetched_parameter_bytes", 0) + counters.get("origin_parameter_bytes", 0))


async def full_or_packed(client: Client, full: str) -> bool:
    """The small store says that it is full, unless all came packed from other workers first, so that it had no part."""
    far = (await client.workers())["far2"]
    counters = far["counters"]
    return bool(far["store"].startswith(full) or counters["fetched_parameter_bytes"] == counters["loaded_parameter_bytes"])


async def answers_right(client: Client, model: Path) -> None:
    """Tokens equal transformers'."""
    answers = client.load(STREAMS)
    await client.finished()
    assert all(answer.done for answer in answers)
    assert all(confirm(model, tuple(body(n)["prompt"]), tuple(answers[n].tokens)) for n in range(0, STREAMS, 2))


@claim("Four cold workers on four hosts, with a head without the model, take one model from the origin", of="serving")
async def test_four_cold_hosts(
    spread: Hosts | None, model: Path, pace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has a store that is too small, one another instruction set and no store. A fifth loses its source."""
    assert spread is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    add(tmp_path / "zoo", str(model), "m")
    with spread.at("origin"):
        context = served_folder(tmp_path / "zoo", spread.address("origin"))
        origin = context.__enter__()
    spread.shape(rate=RATE)
    cluster = Spread(spread, pace, tmp_path, origin.address)
    try:
        cluster.server.listening()
        for name in ("far1", "far2"):
            cluster.join(name)
        cluster.join("far3", store=False)
        async with Client(cluster.server) as client:

            async def all_serve(*names: str) -> bool:
                return {*names} <= await serving(client)

            await until(lambda: all_serve("w0", "far1", "far2", "far3"), "four serve")
            spread.shape()

            async def told(*names: str) -> Any:
                """The workers, once these have said what came to them, in the heartbeats after their loads."""
                views = await client.workers()
                return all(came_to(views[name]) for name in names) and views

            views = await until(lambda: told("w0", "far1", "far2", "far3"), "all have said what came")
            assert origin.sent <= 1.1 * origin.tensor_bytes
            await until(lambda: full_or_packed(client, f"store {tmp_path / 'far2'} is full ("), "its store has no room")
            assert views["far3"]["numerics"] != views["w0"]["numerics"]
            assert views["far3"]["counters"]["fetched_parameter_bytes"] > 0
            await answers_right(client, model)

            before = origin.sent
            cluster.server.lever(DIE).touch()
            cluster.join("late")
            await until(lambda: all_serve("late"), "it serves, too")
            assert not cluster.server.lever(DIE).exists(), "a source was killed"
            views = await until(lambda: told("late"), "it has said what came")
            assert came_to(views["late"]) <= 1.1 * origin.tensor_bytes
            assert origin.sent - before < origin.tensor_bytes, "the source had given some"
            await answers_right(client, model)
        cluster.kill()
        cluster.server.stop()
    finally:
        cluster.kill()
        cluster.server.destroy()
        context.__exit__(None, None, None)

"""Workers join with what their machines have, over the real runtime in one process, and compute no tensors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors import device_choice
from blockwright.actors.device_choice import read_machine
from blockwright.actors.settings.errors import StartError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.topology import Running, start
from blockwright.actors.worker import joined
from blockwright.actors.worker.main import read, read_and_measure
from blockwright.actors.worker.messages import WorkerConfig
from blockwright.actors.worker.starting import Starting
from blockwright.gpu.errors import BackendError
from blockwright.policies.cluster.worker_size import WorkerReading
from blockwright.runtime.base.errors import ActorDied
from blockwright.tests.actors import fake_worker
from blockwright.tests.actors.test_device_choice import WHOLE, h100
from blockwright.tests.actors.test_topology import collect
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation
from blockwright.tests.waiting import PATIENCE, until
from blockwright.tests.worker_config import worker_config
from blockwright.transport.errors import HandshakeRefused, PeerGone

GIB = 1 << 30
Checkpoints = Callable[..., Path]


def machine(host: str, **found: Any) -> WorkerReading:
    plain = {"device": "cpu", "cores": 4, "free_memory": 10 * GIB, "where": f"on {host}", "bandwidth": 1e10}
    return WorkerReading(machine=host, host=host, products=1e15, **{**plain, **found})


@contextlib.asynccontextmanager
async def cluster(folder: Path, *machines: WorkerReading, **settings: Any) -> AsyncIterator[Running]:
    """A cluster whose workers are on these machines."""
    fake_worker.reset().machines.update({f"w{n}": one for n, one in enumerate(machines)})
    chosen = Settings(applications={"m": str(folder)}, workers=len(machines), heartbeat=0.02, silence=PATIENCE, **settings)
    running = await start(chosen, in_process=True, worker_entry="blockwright.tests.actors.fake_worker:start")
    try:
        async with asyncio.timeout(PATIENCE):
            yield running
    finally:
        await running.stop()


@claim("Each worker is as large as its own machine allows, and what it reported is shown", of="serving")
async def test_unequal_machines_give_unequal_workers(checkpoint: Checkpoints) -> None:
    large = machine("large", cores=8, free_memory=40 * GIB, bandwidth=3e10)
    async with cluster(checkpoint(), machine("small"), large, memory=0) as running:
        await running.ready(whole=True)
        workers = (await running.controller.cluster())["workers"]
        assert [one["reported"] for one in workers] == [
            {
                "host": "small", "device": "cpu", "cores": 4, "threads": 2, "memory": 3 * GIB,
                "speed": {"bandwidth": 10**10, "products": 10**15},
            },
            {
                "host": "large", "device": "cpu", "cores": 8, "threads": 4, "memory": 12 * GIB,
                "speed": {"bandwidth": 3 * 10**10, "products": 10**15},
            },
        ]  # fmt: skip
        assert [one["memory"]["budget"] for one in workers] == [3 * GIB, 12 * GIB]


async def test_a_pipeline_is_cut_by_the_speeds_that_workers_report(checkpoint: Checkpoints) -> None:
    machines = [machine(f"host{n}", bandwidth=speed) for n, speed in enumerate((1e10, 3e10))]
    async with cluster(checkpoint(), *machines, pipeline=2) as running:
        await running.ready(whole=True)
        (route,) = (await running.controller.cluster())["routes"]
        slow, quick = (hop["last"] - hop["first"] for hop in route["hops"])
        assert 0 < slow < quick


@claim("A faster worker gets more of the requests, by the speed with which it joined", of="serving")
async def test_gateways_hear_of_the_speeds_and_send_less_to_a_slower_worker(checkpoint: Checkpoints) -> None:
    machines = [machine(f"host{n}", bandwidth=speed) for n, speed in enumerate((1e10, 3e10))]
    async with cluster(checkpoint(), *machines) as running:
        await running.ready(whole=True)
        paces = running.port.book.parts.table.paces  # type: ignore[attr-defined]
        await until(lambda: paces.joined.slower)
        assert [paces.joined.of(worker) for worker in ("w0", "w1")] == [8 / 3, 1.0]
        fake_worker.FATE.hold = asyncio.Event()
        streams = [running.port.generate(generation(f"r{n}", prompt=5, max_tokens=5)) for n in range(8)]
        table = running.port.book.parts.table  # type: ignore[attr-defined]
        assert [len(table.on[worker]) for worker in ("w0", "w1")] == [2, 6]
        fake_worker.FATE.hold.set()
        for stream in streams:
            await collect(stream)


@claim("A setting that a worker's machine cannot satisfy is refused by name, with the numbers and the remedy", of="serving")
async def test_a_worker_that_has_less_than_a_setting_demands_is_refused_with_the_numbers(checkpoint: Checkpoints) -> None:
    nook = machine("nook", free_memory=1 << 29)
    async with cluster(checkpoint(), machine("large"), nook, memory=1 << 29) as running:
        with pytest.raises(StartError) as refused:
            await running.ready()
    assert str(refused.value) == (
        "worker w1 cannot start: memory is 512.0 MiB for each worker, 1.0 GiB for all 2, but only 512.0 MiB are free on "
        "nook; give less (--set memory=...)"
    )


async def test_workers_of_one_machine_are_equal_and_keep_their_size_when_they_are_restarted(checkpoint: Checkpoints) -> None:
    """The second one, and each next life, would find the memory taken."""
    first, full = machine("one"), machine("one", free_memory=1 << 20, bandwidth=1e9)
    async with cluster(checkpoint(), first, full, memory=0) as running:
        await running.ready(whole=True)
        before = [one["reported"] for one in (await running.controller.cluster())["workers"]]
        assert before[0] == before[1]
        assert before[0]["memory"] in (3 * GIB, int((1 << 20) * 0.6) // 2), "the first of the two that came"
        fake_worker.FATE.machines["w0"] = full
        await running.cluster.kill("w0")
        await until(lambda: running.progress.value.whole and running.cluster.members()["w0"].id.incarnation == 2)
        await running.ready(whole=True)
        workers = (await running.controller.cluster())["workers"]
        assert [one["reported"] for one in workers] == before
        assert workers[0]["incarnation"] == 2


def test_a_worker_reads_its_own_machine_and_measures_it() -> None:
    config: WorkerConfig = replace(worker_config(), sharing=2)
    found, here = read_and_measure(config), read_machine(config.worker, 2)
    assert (found.machine, found.host, found.device, found.cores) == (here.machine, here.host, "cpu", here.cores)
    assert found.bandwidth > 0
    assert found.products > 0
    assert read(config).bandwidth == 0


def test_device_auto_takes_the_cpu_where_torch_cannot_use_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "read_cards", lambda: [h100(0)])
    monkeypatch.setattr(device_choice, "look_at_host", lambda: WHOLE)
    found = read_and_measure(worker_config(device="auto"))
    assert found.device == "cpu"
    assert found.notice.startswith("device auto computes on the CPU: torch cannot use cuda:0 (")
    with pytest.raises(BackendError, match="torch cannot use cuda:0"):
        read_and_measure(worker_config(device="cuda"))


def fake_node(incarnation: int, farewell: str) -> Any:
    async def stop() -> None:
        await asyncio.sleep(0)

    return SimpleNamespace(
        closed=asyncio.Event(), farewell=farewell, id=f"far#{incarnation}", name="far", head="head#1", stop=stop,
        actors=SimpleNamespace(instances={}), endpoint="tcp://far", life_over=False,
        peering=SimpleNamespace(announce_ready=lambda: None),
    )  # fmt: skip


async def test_a_worker_whose_life_is_over_comes_back_as_soon_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that it had, and with the legacy of its former life. A refusal that stays ends it."""
    lives = [fake_node(1, "the head declared it down"), fake_node(2, "the head stopped it")]
    refusals: list[Exception] = []
    entered: list[tuple[str, dict[str, Any]]] = []

    async def enter(*_: object, name: str, listen: str, legacy: dict[str, Any]) -> Any:
        entered.append((name, legacy))
        if len(entered) > 1 and refusals:
            raise refusals[0] if forever else refusals.pop()
        return lives[len(said) // 2]

    async def enlist(*_: object) -> object:
        return SimpleNamespace(launched=False)

    def end(node: Any) -> None:
        node.life_over = node is lives[0]
        node.closed.set()

    async def begin(node: Any, config: object) -> None:
        asyncio.get_running_loop().call_later(0.001, end, node)

    for name, fake in (("enter", enter), ("enlist", enlist), ("start", begin)):
        monkeypatch.setattr(joined, name, fake)
    said: list[str] = []
    forever, refusals = False, [PeerGone("no way"), HandshakeRefused("it has a node far already")]
    assert not await joined.serve(Starting("bwj1-"), said.append)
    assert [name for name, _ in entered] == ["", "far", "far", "far"]
    assert all(legacy is entered[0][1] for _, legacy in entered)
    assert [line.partition(" of head")[0] for line in said] == [
        "worker far#1",
        "worker far#1 is over (the head declared it down), and comes back with what is in its memory",
        "worker far#2",
        "worker far#2 leaves: the head stopped it",
    ]
    monkeypatch.setattr(joined, "RETURNING", 0.0)
    said, entered, forever, refusals = [], [], True, [HandshakeRefused("the join text has expired")]
    lives[0].life_over = False
    lives[0].closed.clear()
    with pytest.raises(HandshakeRefused, match="expired"):
        await joined.serve(Starting("bwj1-"), said.append)


async def test_a_head_that_is_lost_while_a_worker_starts_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start fails then, too, and nobody waits for it any more."""

    node = fake_node(1, "the head is down")

    async def enter(*_: object, **__: object) -> object:
        return node

    async def enlist(*_: object) -> object:
        return SimpleNamespace(launched=False)

    async def begin(*_: object) -> None:
        node.closed.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ActorDied("its owner has ended") from None

    for name, fake in (("enter", enter), ("enlist", enlist), ("start", begin)):
        monkeypatch.setattr(joined, name, fake)
    said: list[str] = []
    assert not await joined.serve(Starting("bwj1-", "far"), said.append)
    gc.collect()
    await asyncio.sleep(0)
    assert said == ["worker far#1 leaves: the head is down"]
    assert "never retrieved" not in caplog.text

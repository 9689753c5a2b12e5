"""Hidden states that leave a worker: laid into shared memory by the device thread, sent by the loop."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors.worker.device_thread import DeviceThread, ExecutedPlan
from blockwright.actors.worker.outbox import Outbox, open_device_memory
from blockwright.gpu.host_device import EndedSweep
from blockwright.policies.plan.sweep_plan import Departure, SweepPlan, SweepResult
from blockwright.runtime import Node, NodeDown
from blockwright.runtime.base.clock import ManualClock
from blockwright.tests.waiting import until
from blockwright.transport.device_memory import DeviceMemoryError
from blockwright.transport.link import Slot, Traffic
from blockwright.transport.memory_file import MemoryFile
from blockwright.transport.transfer import SHARE_LEAST


async def test_large_hidden_states_go_through_a_slot_from_the_second_on(tmp_path):
    tmp_path.chmod(0o700)
    w0, w1 = Node("w0", directory=tmp_path), Node("w1", directory=tmp_path)
    await w0.start()
    await w1.start()
    got: list[tuple[bytes, bytes]] = []
    w1.on_link(Traffic.ACTIVATION, lambda node, header, buffers: got.append((header, bytes(buffers[0]))))
    outbox, large = Outbox(w0), memoryview(bytes(SHARE_LEAST))
    with pytest.raises(NodeDown):
        outbox.send("w1", b"", large)
    w0.peering.greet(w1.id, w1.endpoint)
    assert outbox.lay_out("w1", large) is large, "nothing is known of the way yet"
    outbox.send("w1", b"0", large)
    await until(lambda: len(got) == 1)
    free = w0.tensor_links.inspect()["slots_free_bytes"]
    slot = await asyncio.to_thread(outbox.lay_out, "w1", large)
    assert isinstance(slot, Slot)
    assert outbox.lay_out("w1", large[:-1]) is not slot
    assert len(outbox.lay_out("w1", large[:-1])) == SHARE_LEAST - 1
    outbox.send("w1", b"1", slot)
    del slot
    await until(lambda: len(got) == 2 and w0.tensor_links.inspect()["slots_free_bytes"] >= free)
    assert got == [(b"0", bytes(large)), (b"1", bytes(large))]
    await w0.stop()
    await w1.stop()


async def test_hidden_states_for_a_worker_that_is_not_known_wait_in_order_and_are_dropped_with_its_routes(tmp_path):
    tmp_path.chmod(0o700)
    w0, w1 = Node("w0", directory=tmp_path), Node("w1", directory=tmp_path)
    await w0.start()
    await w1.start()
    got: list[int] = []
    w1.on_link(Traffic.ACTIVATION, lambda node, header, buffers: got.append(buffers[0][0]))
    outbox = Outbox(w0)
    for number in range(2):
        outbox.depart_one(Departure("w1", [], "w0", 1, []), memoryview(bytes([number])))
    outbox.depart_one(Departure("w2", [], "w0", 1, []), memoryview(b"2"))
    outbox.retry()
    w0.peering.greet(w1.id, w1.endpoint)
    outbox.depart_one(Departure("w1", [], "w0", 1, []), memoryview(bytes([2])))
    await until(lambda: got == [0, 1, 2])
    assert [*outbox._waiting] == ["w2"]
    outbox.retain({"w1"})
    assert outbox._waiting == {}
    await w0.stop()
    await w1.stop()


async def test_the_device_thread_lays_out_what_leaves():
    threads: list[str] = []

    def lay_out(worker: str, hidden: memoryview) -> memoryview:
        threads.append(threading.current_thread().name)
        return memoryview(worker.encode() + bytes(hidden))

    departed = [memoryview(b"7.0"), memoryview(b"7.1")]
    executor = SimpleNamespace(submit=lambda plan: EndedSweep(SweepResult(plan.number), departed), enter=lambda: None)
    swept: asyncio.Future[ExecutedPlan] = asyncio.get_running_loop().create_future()
    device = DeviceThread(executor, swept.set_result, swept.set_exception, lay_out)
    device.start()
    departures = [SimpleNamespace(worker="w1"), SimpleNamespace(worker="w2")]
    device.sweep(SweepPlan(7, departures=departures))
    assert [bytes(hidden) for hidden in (await swept).departed] == [b"w17.0", b"w27.1"]
    assert threads == ["device", "device"]
    device.stop()


def test_which_memory_a_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, opened = ManualClock(), list[int]()
    monkeypatch.setattr("blockwright.transport.cupy_memory.CupyMemory", lambda number: opened.append(number))
    assert open_device_memory("cpu", clock) is None
    assert isinstance(open_device_memory("cuda-mirror", clock), MemoryFile)
    open_device_memory("cuda", clock)
    open_device_memory("cuda:2", clock)
    assert opened == [0, 2]


def test_without_cupy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("blockwright.transport.cupy_memory.importlib.import_module", missing)
    with pytest.raises(DeviceMemoryError, match=r"pip install 'blockwright\[gpu\]'"):
        open_device_memory("cuda", ManualClock())

"""One worker's real memory (smaps) follows its budget at every moment: parameters go, their chunks hold KV, and they come
back from another worker while sequences run, whose slots move together for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker.device_thread import DeviceThread
from blockwright.actors.worker.messages import BlockLoaded
from blockwright.tests.actors.worker_rig import ANSWER, Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.memory import arena_bytes
from blockwright.tests.waiting import until

MakeCheckpoint = Callable[..., Path]
CHUNK = 1 << 16
STREAMS = 24
NEW = 150
PROMPT = 20
EVERY = 8


def sampled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(resident bytes of the pool, bytes of parameters, bytes of KV that it has) after some operations of the device."""
    device: Any = rig.worker.device
    arenas = device._executor._arenas
    found = list[tuple[int, int, int]]()
    count = [0]

    def after(work: Callable[..., Any]) -> Callable[..., Any]:
        def whole(*arguments: object) -> object:
            value = work(*arguments)
            count[0] += 1
            if count[0] % EVERY == 0:
                ranges = [range(a.memory.data_ptr(), a.memory.data_ptr() + a.nbytes) for a in arenas.values()]
                committed = dict(device._executor.committed())
                parameters = committed.pop("parameters")
                found.append((sum(arena_bytes(within=one) for one in ranges), parameters, sum(committed.values())))
            return value

        return whole

    for name in ("_sweep", "_advance"):
        monkeypatch.setattr(device, name, after(getattr(DeviceThread, name).__get__(device)))
    return found


async def stream(rig: Rig, names: Sequence[str]) -> None:
    for name in names:
        await rig.submit(name, list(prompt_of(PROMPT, seed=int(name))), NEW, application="b")


async def reach(rig: Rig, names: Sequence[str], tokens: int) -> None:
    await until(lambda: all(len(rig.record.tokens[name]) >= tokens for name in names))


@claim("Parameters and KV share one pool of memory, whose size in the system follows its accounts", of="serving")
async def test_the_pool_holds_what_the_budget_says_at_every_moment(
    checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod(tmp_path, 0o700)
    a, b = checkpoint("llama", vocab_size=3000), checkpoint("qwen2")
    same: dict[str, Any] = {"backend": "native", "directory": tmp_path, "max_rows": 64, "prefix_cache": False}
    first = await Rig.start([a, b], **same, name="w0")
    budget = (await first.ref.status()).parameters + 10 * CHUNK
    second = await Rig.start([a, b], **same, name="w1", memory=budget, check=False)
    for one, other in ((first, second), (second, first)):
        one.node.peering.greet(other.node.id, other.node.endpoint)
    samples, names = sampled(second, monkeypatch), [str(number) for number in range(STREAMS)]
    with_all = (await second.ref.status()).parameters
    await second.publish(["b"])
    freed = await second.ref.unload("a", first.loads["a"].ids)
    assert freed > 10 * CHUNK
    await stream(second, names)
    await reach(second, names, 60)
    assert (await second.ref.status()).kv > budget - with_all, "it has what the parameters had"
    gone = [name for name in names if int(name) % 6]
    await second.ref.cancel(gone)
    await until(lambda: len(second.worker.state.parts.rows.live()) == STREAMS - len(gone))
    block = replace(first.loads["a"], source="w0")
    loaded: Any = await second.ref.load(block, returns=ANSWER)
    assert isinstance(loaded, BlockLoaded), loaded
    assert loaded.fetched == loaded.new_bytes == second.added["a"]
    moved = second.worker.state.counters["moved_slots"]
    assert moved > 0
    await second.publish()
    rest = [name for name in names if name not in gone]
    for name in rest:
        tokens, reference = await second.finish(name), greedy(b, prompt_of(PROMPT, seed=int(name)), NEW)
        assert tokens[: len(reference)] == list(reference), name
    prompt = prompt_of(30, seed=1)
    reference = greedy(a, prompt, 8)
    assert (await second.generate("a", list(prompt), 8, application="a"))[: len(reference)] == list(reference)
    await second.quiet()
    assert len(samples) > 20
    for resident, parameters, kv in samples:
        assert resident <= parameters + kv <= budget
    assert max(kv for _, _, kv in samples) > budget - with_all
    assert samples[-1][1] == with_all
    for rig in (first, second):
        await rig.stop()

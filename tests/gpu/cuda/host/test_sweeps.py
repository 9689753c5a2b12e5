"""Sweeps on the mirror: several plans open at a time, recorded graphs, and what the host has to draw."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockwright.gpu.cuda import departures, graphs
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.host_memory import ints
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.device import Outgoing
from blockwright.gpu.errors import BackendError
from blockwright.gpu.select import open_backend
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import Departure, SetSampling
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY, Rig

MakeCheckpoint = Callable[..., Path]
WARM = SamplingParams(temperature=1.3, seed=4)
OPTIONS = [GREEDY, WARM, SamplingParams(seed=1, top_p=0.8, min_p=0.01, presence_penalty=0.5)]


def mirrored(path: Path, seed: int = 0) -> tuple[Rig, CudaDevice]:
    rig = Rig(open_mirror("float32", seed=seed), path)
    assert isinstance(rig.executor.device, CudaDevice)
    return rig, rig.executor.device


def decoded(rig: Rig, options: list[SamplingParams], sweeps: int, together: int = 1) -> list[list[int]]:
    """Tokens of rows that decode together; results are waited for ``together`` plans at a time."""
    edits = [edit for row, params in enumerate(options) for edit in rig.admit(row, reference.prompt_of(5, seed=row), params)]
    rows = range(len(options))
    waiting = [rig.executor.submit(rig.plan([(row, 0, 5) for row in rows], list(rows), edits))]
    found = []
    for sweep in range(sweeps):
        if len(waiting) == together:
            found += [ticket.wait().tokens for ticket in waiting]
            waiting = []
        waiting.append(rig.executor.submit(rig.plan([(row, 5 + sweep, 1) for row in rows], list(rows))))
    return found + [ticket.wait().tokens for ticket in waiting]


@claim("A plan is queued on a card before the tokens of the plan before it are known to the host", of="numerics")
@pytest.mark.parametrize("together", [2, 7])
def test_open_plans_read_the_last_tokens_on_the_card(checkpoint: MakeCheckpoint, together: int) -> None:
    path = checkpoint("llama")
    want = decoded(mirrored(path)[0], OPTIONS, 9)
    rig, _ = mirrored(path, seed=together)
    assert decoded(rig, OPTIONS, 9, together) == want
    edits = [edit for row in (3, 4) for edit in rig.admit(row, reference.prompt_of(5), GREEDY)]
    first = rig.executor.submit(rig.plan([(3, 0, 5), (4, 0, 5)], [0, 1], edits))
    second = rig.executor.submit(rig.plan([(3, 5, 1), (4, 5, 1)], [0, 1]))
    assert (first.ready, second.ready) == (False, False)
    assert rig.executor.tables.tokens[3, 5] == 0, "the host has not seen it"
    assert second.wait().on_host == 0
    assert first.ready
    assert first.wait() is first.wait()


@claim("Recorded graphs of decode give the tokens of launches, name only memory that stays, and are bounded", of="numerics")
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt-neox"])
def test_replays_equal_launches(checkpoint: MakeCheckpoint, architecture: str) -> None:
    path = checkpoint(architecture)
    launched, device = mirrored(path)
    device.graphs.enabled = False
    want = decoded(launched, [GREEDY, WARM, WARM], 8)
    assert (device.graphs.recorded, device.graphs.replayed) == (0, 0)
    rig, device = mirrored(path)
    assert decoded(rig, [GREEDY, WARM, WARM], 8) == want
    assert device.graphs.recorded == 2  # a step and a head, of one bucket
    assert device.graphs.replayed == 2 * (8 - graphs.USES) + 1  # the prompts' head is one of the bucket, too
    assert 0 < device.held()["graphs"] == device.graphs.nbytes


def test_graphs_are_dropped_with_their_run_and_when_memory_moves(checkpoint: MakeCheckpoint) -> None:
    rig, device = mirrored(checkpoint("llama"))
    want = decoded(rig, [GREEDY, WARM], 6)
    before, held = device.graphs.recorded, device.held()["graphs"]
    device.backend.scratch.need("input", 1 << 20)
    rig.executor.device.tables.apply([SetSampling(0, 5, GREEDY)])
    rig._slots = list(range(3 * 8 * 20))
    assert decoded(rig, [GREEDY, WARM], 6) == want
    assert device.graphs.recorded > before, "buckets were recorded again"
    assert device.held()["graphs"] == held
    rig.executor.drop(0)
    gc.collect()
    assert device.held()["graphs"] == 0


def test_the_number_of_graphs_is_bounded(checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, device = mirrored(checkpoint("llama"))
    monkeypatch.setattr(graphs, "MOST", 3)
    want = {count: decoded(rig, [GREEDY] * count, 4) for count in (1, 2, 3)}
    assert device.graphs.recorded == 6
    alive = [one for one in device.graphs._alive() if one.graph is not None]
    assert len(alive) == 3
    monkeypatch.setattr(graphs, "MOST_BYTES", 1)
    rig._slots = list(range(3 * 8 * 20))
    assert decoded(rig, [GREEDY] * 3, 4) == want[3]
    assert decoded(rig, [GREEDY] * 5, 4)
    assert len([one for one in device.graphs._alive() if one.graph is not None]) == 1


def test_a_graph_that_names_what_does_not_stay_is_refused() -> None:
    streams = DeferredStreams(1)
    stream, memory = streams.stream(), torch.zeros(8, dtype=torch.int32)
    ran = list[int]()
    work = lambda: stream.launch(lambda: ran.append(int(ints(memory.data_ptr(), 8)[0])))  # noqa: E731
    whole = memory.data_ptr(), memory.nbytes
    graph = streams.record(stream, work, lambda: [whole])
    assert not ran, "recording runs nothing"
    graph.replay(stream)
    streams.settle()
    assert ran == [0]
    half = memory.data_ptr(), memory.nbytes // 2
    streams.record(stream, work, lambda: [half]).replay(stream)
    with pytest.raises(BackendError, match=r"names 32 bytes at .*, which do not stay"):
        streams.settle()


def test_what_the_host_draws_is_counted_and_is_the_same(checkpoint: MakeCheckpoint) -> None:
    """Beside rows that the card draws, and with plans that are open together."""
    path = checkpoint("llama")
    phrase = replace(WARM, rules=TokenRules(banned=[[3, 4]]), logprobs=2)
    repeat = SamplingParams(temperature=0.0, rules=TokenRules(no_repeat=1))
    options = [phrase, GREEDY, repeat, SamplingParams(seed=2, top_k=5)]
    rig, _ = mirrored(path, seed=3)
    found = decoded(rig, options, 5, together=3)
    assert rig.executor.execute(rig.plan([(row, 10, 1) for row in range(4)], [0, 1, 2, 3])).on_host == 2
    assert found == decoded(Rig(open_backend("torch", "float32", 1), path), options, 5)


@claim("Hidden states that leave a card stay there as long as they are held, and no plan overwrites them", of="numerics")
def test_departures_lie_on_the_card_as_long_as_they_are_held(checkpoint: MakeCheckpoint) -> None:
    rig, device = mirrored(checkpoint("llama"), seed=5)
    prompt = reference.prompt_of(9)
    edits = [edit for row in range(2) for edit in rig.admit(row, prompt)]
    rig.run([(0, 0, 9), (1, 0, 9)], [0, 1], edits)

    def left() -> Outgoing:
        plan = rig.plan([(0, 3, 4), (1, 5, 2)])
        plan.steps = [replace(step, batch=[0, 1]) for step in plan.steps]
        plan.departures = [Departure("w1", "w0", 64, [1, 0], [])]
        ticket = rig.executor.submit(plan)
        ticket.wait()
        return ticket.departed[0]

    def content(one: Outgoing) -> bytes:
        memory = bytearray(one.nbytes)
        if isinstance(one, memoryview):
            memory[:] = one
        else:
            one.copy_to(memory)
        return bytes(memory)

    held = [left() for _ in range(departures.BUFFERS + 2)]
    first = content(held[0])
    assert [content(one) == first for one in held] == [True] * len(held)
    places = [one.address for one in held if not isinstance(one, memoryview)]
    assert len(set(places)) == departures.BUFFERS, "further ones came to the host with their plan's results"
    del held[0]
    gc.collect()
    again = left()
    assert not isinstance(again, memoryview)
    assert again.address == places[0]
    assert [content(one) == first for one in (*held, again)] == [True] * (len(held) + 1)
    assert device.held()["departures"] == departures.BUFFERS * 512 * 64 * 4

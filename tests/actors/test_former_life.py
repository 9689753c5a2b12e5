"""A worker whose life is over leaves its memory to the next life of its process: parameters and pages, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.actors.worker.former_life import close_legacy
from blockwright.api.commands.trace import replay
from blockwright.runtime.base.errors import ActorDied
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.parts import some
from blockwright.tests.waiting import until

Checkpoints = Callable[..., Path]
PROMPT = prompt_of(70)
LONG = 400


@claim("A worker whose life is over comes back with what is in its memory, and loads nothing again", of="faults")
@pytest.mark.parametrize("backend", some(["torch", "native"], "native"))
async def test_the_next_life_has_the_parameters_and_pages_and_no_sequence(
    checkpoint: Checkpoints, tmp_path: Path, backend: str
) -> None:
    path, legacy = checkpoint("llama"), dict[str, Any]()
    options: dict[str, Any] = {"backend": backend, "legacy": legacy, "event_log": str(tmp_path / "logs")}
    rig = await Rig.start([path], **options)
    first = await rig.generate("whole", list(PROMPT), 8)
    assert rig.worker._loader.loaded_bytes > 0
    for number in range(5):
        await rig.submit(f"cut{number}", list(prompt_of(40, seed=number)), LONG)
    await until(lambda: all(rig.record.tokens[f"cut{number}"] for number in range(5)))
    said = len(rig.record.reports)
    rig.node.peering.follower.end("unreachable")
    swept = rig.worker.state.number + rig.worker.state.open_plans
    await rig.stop()
    assert rig.worker.state.number <= swept, "nothing is planned after the end"
    assert len(rig.record.reports) == said, "nothing is told of what was computed at the end"
    parts = rig.worker.state.parts
    assert not parts.rows.live()
    assert [*legacy] == ["worker"]

    again = await Rig.start([path], incarnation=2, **options)
    assert again.worker.state is rig.worker.state
    assert again.added == {"a": 0}
    assert again.worker._loader.loaded_bytes == 0
    assert (await again.ref.status()).unclaimed == {}
    assert await again.generate("again", list(PROMPT), 8) == first == list(greedy(path, PROMPT, 8))
    (emitted,) = [news for report in again.record.reports for news in report.news if news.request == "again"][:1]
    assert emitted.cached >= 64, "its pages are there"
    await again.generate("another", list(prompt_of(40, seed=1)), 24)
    await again.quiet()
    await again.stop()
    files = sorted((tmp_path / "logs").iterdir(), key=lambda path: EventLog(path).header.incarnation)
    assert [EventLog(path).header.incarnation for path in files] == [1, 2]
    for file in files:
        report = replay(file)
        assert (report.agrees, report.ended, report.failed) == (True, True, "")


async def ended(rig: Rig) -> None:
    """Let the life of a worker be over, as a head says."""
    rig.node.peering.follower.end("unreachable")
    await rig.stop()


async def test_what_the_next_life_does_not_ask_for_is_known_and_can_go(checkpoint: Checkpoints) -> None:
    one, other, legacy = checkpoint("llama"), checkpoint("llama", seed=5), dict[str, Any]()
    rig = await Rig.start([one, other], legacy=legacy)
    before = (await rig.ref.status()).parameters
    await ended(rig)
    again = await Rig.start([one], legacy=legacy, incarnation=2)
    status = await again.ref.status()
    assert status.parameters == before
    assert {holder: {*ids} for holder, ids in status.unclaimed.items()} == {"b": {*rig.loads["b"].ids}}
    await again.ref.unload("b", status.unclaimed["b"])
    status = await again.ref.status()
    assert status.unclaimed == {}
    assert status.parameters < before
    await again.quiet()
    await again.stop()
    rig = await Rig.start([one])
    assert (await rig.ref.status()).parameters == status.parameters
    await rig.stop()


async def test_a_life_that_is_configured_in_another_way_begins_without_it(checkpoint: Checkpoints) -> None:
    path, legacy = checkpoint("llama"), dict[str, Any]()
    rig = await Rig.start([path], legacy=legacy)
    await ended(rig)
    again = await Rig.start([path], legacy=legacy, incarnation=2, memory=17 << 20)
    assert again.worker.state is not rig.worker.state
    assert again.added["a"] > 0
    assert legacy == {}
    await again.stop()


async def test_a_life_that_ends_in_another_way_leaves_nothing(checkpoint: Checkpoints) -> None:
    legacy = dict[str, Any]()
    rig = await Rig.start([checkpoint("llama")], legacy=legacy)
    await rig.stop()
    assert legacy == {}, "it was stopped in order"
    rig = await Rig.start([checkpoint("llama")], legacy=legacy)
    rig.worker._on_fatal(RuntimeError("the device has failed"))
    await ended(rig)
    assert legacy == {}


async def test_what_no_life_takes_over_is_ended(checkpoint: Checkpoints) -> None:
    legacy = dict[str, Any]()
    rig = await Rig.start([checkpoint("llama")], legacy=legacy)
    await ended(rig)
    close_legacy(legacy)
    assert legacy == {}
    assert not rig.worker.device._thread.is_alive()  # type: ignore[attr-defined]


async def test_a_load_that_the_end_cuts_off_is_not_kept(checkpoint: Checkpoints) -> None:
    """Its caller is gone; what is whole stays."""
    path, other, legacy = checkpoint("llama"), checkpoint("llama", seed=5), dict[str, Any]()
    rig = await Rig.start([path], legacy=legacy)
    loading = asyncio.ensure_future(rig.load("b", other))
    await until(lambda: rig.worker.state.parts.memory.residence.holders() == {"a", "b"})
    await ended(rig)
    with pytest.raises(ActorDied):
        await loading
    again = await Rig.start([path, other], legacy=legacy, incarnation=2)
    assert again.added["a"] == 0
    assert again.added["b"] > 0
    prompt = list(PROMPT)
    assert await again.generate("b", prompt, 8, application="b") == list(greedy(other, PROMPT, 8))
    await again.quiet()
    await again.stop()

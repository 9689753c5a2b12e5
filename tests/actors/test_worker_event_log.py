"""The event log of a real worker: with preemptions, loads, cancellations and failures it is replayed to the same plans."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.api.commands.trace import Report, replay
from blockwright.gpu.executor import Executor
from blockwright.policies.sweep.event_log import Planned
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import until

Checkpoints = Callable[..., Path]


def read(folder: Path) -> Report:
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return replay(path)


@claim("The event log of a worker replays its plans bit by bit, also after kill -9", of="serving")
async def test_all_that_a_worker_did_is_planned_again(checkpoint: Checkpoints, tmp_path: Path) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([path])
    parameters = (await rig.ref.status()).parameters
    await rig.stop()
    # two chunks hold 10 pages of 3 layers, the longest sequence takes 6
    rig = await Rig.start([path], memory=parameters + (2 << 16), chunk_size=32, event_log=str(tmp_path / "logs"))
    for number in range(5):
        await rig.submit(f"r{number}", list(prompt_of(60, seed=number)), 30)
    await until(lambda: rig.record.tokens["r0"])
    await rig.ref.cancel(["r1"])
    for number in (0, 2, 3, 4):
        await rig.finish(f"r{number}")
    await rig.ref.unload("a", rig.loads["a"].ids)
    await rig.quiet()
    counters, sweeps = rig.worker.state.counters, rig.worker.state.number - 1
    await rig.stop()
    assert counters["preemptions"] > 0
    report = read(tmp_path / "logs")
    assert (report.agrees, report.ended, report.torn, report.failed) == (True, True, 0, "")
    assert (report.sweeps, report.last, report.commits) == (sweeps, sweeps, sweeps)
    assert (report.header.worker, report.header.incarnation, report.header.part) == ("w0", 1, 1)


async def test_a_device_that_fails_leaves_the_plan_that_it_failed_at(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.start([checkpoint("llama")], event_log=str(tmp_path / "logs"))
    await rig.generate("first", [1, 2, 3], 4)

    def fail(self: Executor, plan: object) -> None:
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(Executor, "submit", fail)
    await rig.submit("second", [4, 5, 6], 4)
    with pytest.raises(RuntimeError, match="the card is gone"):
        await rig.finish("second")
    report = read(tmp_path / "logs")
    assert (report.agrees, report.ended, report.failed) == (True, False, "")
    assert report.sweeps > report.commits
    await rig.stop()


async def test_a_machine_that_fails_says_why_in_the_log(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.start([checkpoint("llama")], event_log=str(tmp_path / "logs"))
    await rig.generate("first", [1, 2, 3], 4)

    def fail(self: SweepState, now: float) -> None:
        raise AssertionError("a queue has lost a sequence")

    with monkeypatch.context() as broken:
        broken.setattr(SweepState, "plan", fail)
        await rig.submit("second", [4, 5, 6], 4)
        with pytest.raises(AssertionError, match="lost a sequence"):
            await rig.finish("second")
    (path,) = (tmp_path / "logs").iterdir()
    *_, (_, asked), (_, failed) = EventLog(path)
    assert isinstance(asked, Planned)
    assert not asked.made
    assert "a queue has lost a sequence" in repr(failed)
    report = replay(path)
    assert (report.agrees, report.failed) == (False, "AssertionError: a queue has lost a sequence")
    assert [difference.replayed for difference in report.differences] == ["none"], "this code has not that fault"
    await rig.stop()


async def test_without_the_setting_nothing_stands_before_the_machine(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    assert rig.worker._machine is rig.worker.state
    await rig.stop()


async def test_a_folder_that_cannot_be_used_is_an_error_of_the_start(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """The process of the worker turns it into one sentence for whoever started the server."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        await Rig.start([checkpoint("llama")], event_log=str(tmp_path / "file" / "logs"))

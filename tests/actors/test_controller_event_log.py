"""The event log of a live controller: everything that it was told is decided again, and a digest stands at intervals."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockwright.actors.controller import event_log
from blockwright.actors.controller.event_log import ControlLog, ControlRecorder
from blockwright.actors.settings.logs import LogSettings
from blockwright.actors.worker.event_log_file import EventLog, Header, OtherMachineError, encode_header, entry_encoder
from blockwright.api.commands.trace import replay
from blockwright.policies.control.event_log import ControlReplayer, Handled, Reached
from blockwright.policies.control.events import Deploy, Effect, Event, Recheck, WorkerDown, WorkerHeartbeat, WorkerUp
from blockwright.policies.control.state import ControllerState
from blockwright.policies.sweep.event_log import Began, Ended
from blockwright.tests.actors.test_controller_actor import Rig, turns
from blockwright.tests.claims import claim

from . import test_event_log_file as _strategies  # noqa: F401 - numbers that MessagePack has
from .test_event_recorder import Paper


@claim("The event log of the controller replays its decisions", of="serving")
async def test_all_that_a_controller_did_is_decided_again(tmp_path: Path) -> None:
    rig = Rig()
    await rig.start(LogSettings(event_log=str(tmp_path / "logs")))
    await rig.controller.undeploy("b")
    await turns()
    with pytest.raises(KeyError, match="application 'none' is not known"):
        await rig.controller.deploy("none")
    await rig.controller.deploy("b")
    rig.controller.handle(WorkerDown("w1", 1, "killed"))
    rig.controller.handle(WorkerUp("w1", 2))
    rig.clock.advance(0.5)
    await turns()
    await rig.controller.retire("a", 0.0, "b")
    await turns()
    events, digest = rig.state.version, rig.state.digest()
    await rig.stop()
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name.startswith("controller-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = replay(path)
    assert (report.agrees, report.ended, report.torn, report.failed) == (True, True, 0, "")
    assert (report.header.machine, report.header.worker, report.header.part) == ("control", "controller", 1)
    entries = [entry for _, entry in ControlLog(path)]
    assert entries[-1] == Ended(digest)
    assert report.events == len(entries) - 1 > events > 3
    kinds = {type(entry.event).__name__ for entry in entries if isinstance(entry, Handled)}
    assert kinds >= {"WorkerUp", "Serve", "Loaded", "KvCapacity", "Undeploy", "WorkerDown", "WorkerHeartbeat", "Retire"}
    assert "application 'none'" in next(e.error for e in entries if isinstance(e, Handled) and e.event == Deploy("none"))
    with pytest.raises(OtherMachineError, match="it is the event log of the controller, not of a worker"):
        EventLog(path)


async def test_without_the_setting_nothing_stands_before_the_state() -> None:
    rig = Rig()
    await rig.start(LogSettings())
    assert rig.controller._recorder is None
    await rig.stop()


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Effect)], ids=lambda kind: kind.__name__)
def test_every_event_and_effect_is_read_as_it_was_written(kind: type[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    header = Header(version="0", machine="control", worker="controller", incarnation=1, part=1, written=0.0)

    @settings(max_examples=5, deadline=None, derandomize=True)
    @given(st.from_type(kind))
    def travels(value: Any) -> None:
        entry = Handled(value, 1.0) if kind in get_args(Event) else Handled(Recheck(), 1.0, [value])
        path.write_bytes(encode_header(header) + b"".join(map(entry_encoder(), [Began({}), entry])))
        assert [one for _, one in ControlLog(path)] == [entry]

    travels()


def beats(recorder: ControlRecorder, count: int) -> None:
    for number in range(count):
        recorder.handle(WorkerHeartbeat("w0", 1, 0.0, number, 0), float(number))


async def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ControllerState, ControlRecorder, Any]:
    paper = Paper()
    monkeypatch.setattr(event_log, "EventLogWriter", lambda *arguments: paper)
    state = ControllerState(["w0"], 10.0)
    recorder = ControlRecorder(state, LogSettings(event_log=str(tmp_path)), 1)
    recorder.handle(WorkerUp("w0", 1), 0.0)
    return state, recorder, paper


async def test_a_digest_stands_after_every_so_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "EVERY", 4)
    state, recorder, paper = await recorded(tmp_path, monkeypatch)
    beats(recorder, 6)
    at_seven = state.digest()
    beats(recorder, 1)
    recorder.close()
    ((_, entries),) = paper.parts
    assert [type(entry) for entry in entries] == [*[Handled] * 4, Reached, *[Handled] * 4, Reached]
    assert entries[-1] == Reached(state.digest()) != Reached(at_seven)
    assert paper.last.digest() == state.digest()


async def test_no_digest_is_taken_of_a_large_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "EVERY", 2)
    monkeypatch.setattr(event_log, "LARGE", -1)
    _, recorder, paper = await recorded(tmp_path, monkeypatch)
    beats(recorder, 6)
    recorder.close()
    assert {type(entry) for entry in paper.parts[0][1]} == {Handled}


async def test_another_part_begins_with_the_state_between_two_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, recorder, paper = await recorded(tmp_path, monkeypatch)
    beats(recorder, 3)
    paper.half_full = True
    recorder._flush()
    beats(recorder, 5)
    recorder.close()
    (_, first), (begin, second) = paper.parts
    assert (len(first), len(second)) == (4, 5)
    replay = ControlReplayer(Began(begin.snapshot()))
    assert [found for entry in second if (found := replay.feed(entry))] == []
    assert replay.state.digest() == state.digest()

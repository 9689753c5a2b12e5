"""``blockwright trace replay FILE``: what it says of logs that agree, differ, end early, or are none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest

from blockwright.actors.worker.event_log_file import MAGIC, Header, encode_header, entry_encoder
from blockwright.api.commands.cli import main
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.event_log import Applied, Began, Committed, Entry, Failed, Planned
from blockwright.tests.claims import claim
from blockwright.tests.policies.event_tape import Tape, drive, make_state

ROOT = Path(__file__).parents[3]
HEADER = Header(version="0.1.0", worker="w0", incarnation=3, part=2, written=1.5)

NOT_OPEN = "AssertionError: plan 999 is not open; open are: none"


@pytest.fixture(scope="module")
def tape() -> Tape:
    made = Tape(make_state())
    drive(made, made.state)
    made.end()
    return made


def write(path: Path, tape: Tape, entries: Iterable[Entry]) -> Path:
    path.write_bytes(encode_header(HEADER) + b"".join(map(entry_encoder(), [tape.began, *entries])))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["trace", "replay", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def count(entries: Iterable[Entry], kind: type) -> int:
    return sum(isinstance(entry, kind) for entry in entries)


def test_a_log_that_agrees(tape, tmp_path, capsys):
    path = write(tmp_path / "log", tape, tape.entries)
    code, out, _ = run(capsys, path)
    commits, events = count(tape.entries, Committed), count(tape.entries, Applied)
    assert (code, out.splitlines()) == (
        0,
        [
            "w0, incarnation 3, part 2, written by blockwright 0.1.0",
            f"{commits} sweeps (up to {commits}), {events} events, {commits} commits replayed: all plans agree",
        ],
    )
    code, out, _ = run(capsys, path, "--json")
    found = json.loads(out)
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "trace-replay.json").read_text()))
    assert (code, found["agrees"], found["sweeps"], found["ended"], found["difference"]) == (0, True, commits, True, None)


def test_one_sweep_is_shown_and_the_replay_stops_where_it_should(tape, tmp_path, capsys):
    path = write(tmp_path / "log", tape, tape.entries)
    plan = next(e.plan for e in tape.entries if isinstance(e, Planned) and e.plan and e.plan.number == 7)
    code, out, _ = run(capsys, path, "--show", 7, "--until", 8)
    lines = out.splitlines()
    assert (code, lines[1].split(",")[0]) == (0, "8 sweeps (up to 8)")
    assert "plan of sweep 7:" in lines
    assert f"  row          {plan.row}" in lines
    assert "state of sweep 7:" in lines
    shown = json.loads(run(capsys, path, "--show", 7, "--json")[1])["shown"]
    assert shown["plan"]["start"] == plan.start
    assert shown["state"]["number"] == 8


@claim("`trace replay` finds the first field in which a replay differs from the log", of="command-line")
def test_a_difference_is_shown_field_by_field(tape, tmp_path, capsys):
    entries = list(tape.entries)
    place, entry = next((i, e) for i, e in enumerate(entries) if isinstance(e, Planned) and e.plan and e.plan.number == 5)
    other = SweepPlan(5, row=entry.plan.row, start=[n + 1 for n in entry.plan.start])
    entries[place] = Planned(entry.now, other, made=True)
    path = write(tmp_path / "log", tape, entries)
    code, out, _ = run(capsys, path)
    lines = out.splitlines()
    assert code == 1
    assert lines[1].startswith("5 sweeps (up to 5)")
    assert lines[1].endswith("replayed: DIFFERENT")
    assert f"  start[0]: recorded {entry.plan.start[0] + 1}, replayed {entry.plan.start[0]}" in lines
    offset = len(write(tmp_path / "before", tape, entries[:place]).read_bytes())
    assert f"  in sweep 5, the entry at byte {offset}" in lines
    found = json.loads(run(capsys, path, "--json")[1])
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "trace-replay.json").read_text()))
    assert found["difference"]["byte"] == offset


def test_how_the_log_ends(tape, tmp_path, capsys):
    *entries, _ = tape.entries
    path = write(tmp_path / "log", tape, entries)
    assert run(capsys, path)[:2] == (0, run(capsys, path)[1])
    assert "the log was not closed: the worker was killed or is still running" in run(capsys, path)[1]
    path.write_bytes(path.read_bytes() + b"half")
    assert "the last 4 bytes are a partial record" in run(capsys, path)[1]
    wrong = [*entries, Committed(SweepResult(999), 9.0)]
    code, out, _ = run(capsys, write(path, tape, wrong))
    assert code == 1
    assert f"  error: recorded none, replayed {NOT_OPEN}" in out
    code, out, _ = run(capsys, write(path, tape, [*wrong, Failed(NOT_OPEN)]))
    assert (code, out.splitlines()[-1]) == (0, f"the worker failed here: {NOT_OPEN}")


def test_what_was_not_replayed_is_not_reported(tape, tmp_path, capsys):
    """The log is closed: nobody was killed because the reader stops before its end, or at a difference."""
    path = write(tmp_path / "log", tape, tape.entries)
    assert len(run(capsys, path, "--until", 8)[1].splitlines()) == 2
    for words, last in (((), count(tape.entries, Committed)), (("--until", 3), 3)):
        code, out, _ = run(capsys, path, "--show", 999, *words)
        message = f"sweep 999 was not replayed, so it is not shown; replayed were 1 to {last}"
        assert (code, out.splitlines()[2:]) == (0, [message])
    place = next(i for i, entry in enumerate(tape.entries) if isinstance(entry, Committed))
    code, out, _ = run(capsys, write(path, tape, [*tape.entries[:place], *tape.entries[place + 1 :]]))
    assert (code, "not closed" in out) == (1, False)


def test_until_a_sweep_that_the_log_does_not_have(tape, tmp_path, capsys):
    """Where nothing was compared nothing agrees."""
    path, last = write(tmp_path / "log", tape, tape.entries), count(tape.entries, Committed)
    for until in (0, -3):
        message = f"--until {until}: nothing was compared, as this log begins with sweep 1; give that one or a later one"
        assert run(capsys, path, "--until", until) == (2, "", f"blockwright: {message}\n")
    code, out, _ = run(capsys, path, "--until", last + 5)
    message = f"sweep {last + 5} is not in this log, which ends with sweep {last}"
    assert (code, out.splitlines()[2:]) == (0, [message])
    code, out, _ = run(capsys, write(path, tape, []), "--until", 8)
    assert (code, out.splitlines()[1].partition(": ")[2]) == (0, "no plan was compared")
    place, entry = next((i, e) for i, e in enumerate(tape.entries) if isinstance(e, Planned) and e.plan)
    wrong = [*tape.entries[:place], Planned(entry.now, SweepPlan(1, start=[7]), made=True), *tape.entries[place + 1 :]]
    assert run(capsys, write(path, tape, wrong), "--until", 1)[0] == 1


@pytest.mark.parametrize("size", [0, 1, len(MAGIC) - 1, len(MAGIC), len(MAGIC) + 5])
def test_a_log_of_which_hardly_anything_was_written(tape, tmp_path, capsys, size):
    path = write(tmp_path / "log", tape, [])
    path.write_bytes(path.read_bytes()[:size])
    message = f"blockwright: {path}, byte {size}: its header is missing: the file was cut off\n"
    assert run(capsys, path) == (2, "", message)


def test_a_state_of_another_release(tape, tmp_path, capsys):
    """As a log's of another form is, it is refused in one sentence: what plans would differ cannot be said."""
    state = {name: value for name, value in tape.began.snapshot.items() if name != "config"}
    path = tmp_path / "log"
    path.write_bytes(encode_header(HEADER) + entry_encoder()(Began(state)))
    code, out, err = run(capsys, path)
    at = len(encode_header(HEADER))
    message = "the state with which it begins is none of this blockwright (KeyError: 'config'); blockwright 0.1.0 wrote it"
    assert (code, out, err) == (2, "", f"blockwright: {path}, byte {at}: {message}\n")


def test_files_that_cannot_be_replayed(tape, tmp_path, capsys):
    path = tmp_path / "log"
    assert run(capsys, path) == (
        2,
        "",
        f"blockwright: {path}: No such file or directory; name a file of the setting event_log\n",
    )
    path.write_bytes(b"another")
    assert run(capsys, path) == (
        2,
        "",
        f"blockwright: {path}, byte 0: it begins with b'another': no event log\n",
    )
    whole = write(path, tape, tape.entries).read_bytes()
    path.write_bytes(whole[:200])
    code, _, err = run(capsys, path)
    assert (code, "the state with which the log begins is missing: the file was cut off" in err) == (2, True)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    code, _, err = run(capsys, path)
    assert (code, f"blockwright: {path}, byte " in err, "damaged" in err) == (2, True, True)


def test_an_event_log_that_is_taken_for_a_log_of_messages(tape, tmp_path, capsys):
    path = write(tmp_path / "log", tape, tape.entries)
    code = main(["trace", str(path)])
    said = capsys.readouterr()
    message = f"blockwright: {path} is an event log; replay it: blockwright trace replay {path}\n"
    assert (code, said.out, said.err) == (2, "", message)
    (tmp_path / "messages").write_text("")
    assert main(["trace", str(tmp_path / "messages")]) == 0

"""``blockwright trace replay FILE`` of the controller's log: what it says of logs that agree, differ, or cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from blockwright.actors.worker.event_log_file import Header, encode_header, entry_encoder
from blockwright.api.commands.cli import main
from blockwright.policies.control.event_log import ControlEntry, Handled, Reached
from blockwright.policies.control.events import Load
from blockwright.policies.sweep.event_log import Began
from blockwright.tests.claims import claim
from blockwright.tests.policies.control.test_event_log import ControlTape
from blockwright.tests.waiting import PATIENCE

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schemas" / "trace-replay.json").read_text())
HEADER = Header(version="0.1.0", machine="control", worker="controller", incarnation=3, part=2, written=1.5)


@pytest.fixture(scope="module")
def tape() -> ControlTape:
    return ControlTape(5)


def write(path: Path, tape: ControlTape, entries: Iterable[ControlEntry], header: Header = HEADER) -> Path:
    path.write_bytes(encode_header(header) + b"".join(map(entry_encoder(), [tape.began, *entries])))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["trace", "replay", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def events(tape: ControlTape) -> list[Handled]:
    return [entry for entry in tape.entries if isinstance(entry, Handled)]


def test_a_log_that_agrees(tape: ControlTape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "log", tape, tape.entries)
    effects = sum(len(one.effects) for one in events(tape))
    digests = len(tape.entries) - len(events(tape))
    done = f"{len(events(tape))} events, {effects} effects, {digests} digests replayed: all decisions agree"
    head = "controller, incarnation 3, part 2, written by blockwright 0.1.0"
    assert run(capsys, path) == (0, f"{head}\n{done}\n", "")
    code, out, _ = run(capsys, path, "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    names = ("machine", "agrees", "events", "effects", "ended", "difference", "sweeps")
    assert code == 0
    assert [found[name] for name in names] == ["control", True, len(events(tape)), effects, True, None, 0]


def test_a_log_that_agrees_in_a_process_whose_sets_have_another_order(tape: ControlTape, tmp_path: Path) -> None:
    path = write(tmp_path / "log", tape, tape.entries)
    for seed in ("7", "8"):
        command = [sys.executable, "-m", "blockwright", "trace", "replay", str(path)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


@claim("`trace replay` finds the first effect in which a replay differs from the controller's log", of="command-line")
def test_a_difference_is_shown_field_by_field(tape: ControlTape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, entry = tape.place_of(Load)
    at, load = next((n, effect) for n, effect in enumerate(entry.effects) if isinstance(effect, Load))
    other = [*entry.effects[:at], replace(load, worker="w9"), *entry.effects[at + 1 :]]
    entries = [*tape.entries[:place], Handled(entry.event, entry.now, other), *tape.entries[place + 1 :]]
    code, out, _ = run(capsys, write(tmp_path / "log", tape, entries))
    offset = len(write(tmp_path / "before", tape, entries[:place]).read_bytes())
    number = sum(isinstance(one, Handled) for one in entries[: place + 1])
    where = f"  in event {number} ({type(entry.event).__name__} at {entry.now:.3f} s), the entry at byte {offset}"
    lines = out.splitlines()
    assert (code, lines[1].partition(": ")[2]) == (1, "DIFFERENT")
    assert lines[2:4] == [f"  effects[{at}].worker: recorded 'w9', replayed {load.worker!r}", where]
    found = json.loads(run(capsys, tmp_path / "log", "--json")[1])
    jsonschema.validate(found, SCHEMA)
    assert found["difference"]["byte"] == offset


def test_how_the_log_ends(tape: ControlTape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "log", tape, tape.entries[:-1])
    assert run(capsys, path)[1].splitlines()[2:] == ["the log was not closed: the controller was killed or is still running"]
    path.write_bytes(path.read_bytes() + b"half")
    says = "the last 4 bytes are a partial record: the controller was killed while writing, or still writes"
    code, out, _ = run(capsys, path)
    assert (code, out.splitlines()[2:]) == (0, [says])
    wrong = [*tape.entries[:3], Reached(b"x" * 16)]
    code, out, _ = run(capsys, write(path, tape, wrong))
    assert (code, "  digest of the state: recorded '7878" in out) == (1, True)
    code, out, _ = run(capsys, write(path, tape, []))
    assert (code, out.splitlines()[1]) == (0, "0 events, 0 effects, 0 digests replayed: no decision was compared")


@pytest.mark.parametrize("words", [("--until", 3), ("--show", 3)])
def test_steps_are_those_of_a_worker(
    tape: ControlTape, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...]
) -> None:
    path = write(tmp_path / "log", tape, tape.entries)
    says = "--until and --show name a step of a worker, and this is the log of the controller; leave them out"
    assert run(capsys, path, *words) == (2, "", f"blockwright: {path}: {says}\n")


def test_files_that_cannot_be_replayed(tape: ControlTape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    whole, start = write(path, tape, tape.entries).read_bytes(), len(encode_header(HEADER))
    path.write_bytes(whole[: start + 100])
    code, _, err = run(capsys, path)
    assert (code, "the state with which the log begins is missing: the file was cut off" in err) == (2, True)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    code, _, err = run(capsys, path)
    assert (code, f"blockwright: {path}, byte " in err, "damaged" in err) == (2, True, True)
    write(path, tape, tape.entries, replace(HEADER, format=99))
    assert run(capsys, path)[0] == 2
    write(path, tape, tape.entries, replace(HEADER, machine="oracle"))
    code, _, err = run(capsys, path)
    assert (code, err.endswith("it is the event log of oracle, not of the controller\n")) == (2, True)
    kinds = {**tape.began.snapshot["kinds"], "Claims": ("_on",)}
    path.write_bytes(encode_header(HEADER) + entry_encoder()(Began({**tape.began.snapshot, "kinds": kinds})))
    why = "ValueError: a Claims has _on, _of, and there it has _on"
    says = f"the state with which it begins is none of this blockwright ({why}); blockwright 0.1.0 wrote it"
    assert run(capsys, path) == (2, "", f"blockwright: {path}, byte {start}: {says}\n")

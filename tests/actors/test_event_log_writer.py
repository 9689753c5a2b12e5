"""The files of an event log: how they follow one another within the bound, and what ends a log."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.actors.worker.event_log_writer import MOST_WAITING, EventLogWriter
from blockwright.policies.sweep.event_log import Applied, Ended, Entry
from blockwright.policies.sweep.events import PeerLost


class Counter:
    """Stands for a state: it counts its events, and its snapshot has as many bytes as wanted."""

    def __init__(self, count: int = 0, size: int = 100) -> None:
        self.count, self.size = count, size

    def snapshot(self) -> dict[str, object]:
        return {"count": self.count, "rest": b"x" * self.size}

    def digest(self) -> bytes:
        return self.count.to_bytes(16)


class Life:
    """A writer and what it was given."""

    def __init__(self, directory: Path, bound: int, *, worker: str = "w0", incarnation: int = 1, size: int = 100) -> None:
        self.writer = EventLogWriter(directory, worker, incarnation, bound)
        self.bound = bound
        self.directory = directory
        self.size = size
        self.given = 0
        self.writer.begin(Counter(0, size))  # type: ignore[arg-type]

    def record(self, count: int) -> None:
        self.writer.write([Applied(PeerLost(str(self.given + i)), float(i)) for i in range(count)])
        self.given += count
        self.settle()
        assert sum(path.stat().st_size for path in self.files()) <= self.bound
        if self.writer.half_full:
            self.writer.begin(Counter(self.given, self.size))  # type: ignore[arg-type]
            self.settle()

    def settle(self) -> None:
        """The thread has done all that it was given, or has given up."""
        done = threading.Event()
        self.writer._work.put(done.set)
        while not self.writer._over and not done.wait(0.01):
            continue

    def close(self) -> None:
        self.writer.close(Counter(self.given))  # type: ignore[arg-type]

    def files(self) -> list[Path]:
        return sorted(self.directory.glob(f"{self.writer._name}.*"), key=lambda path: int(path.suffixes[-2][1:]))


def events_of(path: Path) -> tuple[int, list[str], Entry]:
    """(events before the file, peers of its events, last entry)"""
    log = EventLog(path)
    *applied, last = [entry for _, entry in log]
    return log.began.snapshot["count"], [entry.event.worker for entry in applied], last  # type: ignore[union-attr]


def test_two_parts_hold_the_end_of_a_life_within_the_bound(tmp_path):
    life = Life(tmp_path / "logs", 64 << 10)
    for _ in range(300):
        life.record(20)
    life.close()
    elder, younger = life.files()
    first, peers, ended = events_of(elder)
    assert first > 0, "older parts are gone"
    assert peers == [str(n) for n in range(first, first + len(peers))]
    assert ended == Ended(Counter(first + len(peers)).digest())
    second, rest, ended = events_of(younger)
    assert (second, rest) == (first + len(peers), [str(n) for n in range(second, life.given)])
    assert ended == Ended(Counter(life.given).digest())
    assert EventLog(younger).header.part == EventLog(elder).header.part + 1 > 3
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert younger.stat().st_mode & 0o777 == 0o600


def test_much_at_once_takes_the_room_of_the_elder_part(tmp_path):
    life = Life(tmp_path, 64 << 10)
    while len(life.files()) < 2:
        life.record(20)
    before = life.given
    life.record(1200)
    life.close()
    assert [EventLog(path).header.part for path in life.files()] == [2, 3]
    first, peers, _ = events_of(life.files()[0])
    assert (first, peers[-1]) == (before, str(life.given - 1))


@pytest.mark.parametrize(("count", "size", "says"), [(5000, 100, "bytes more do not fit"), (1, 20_000, "its state has")])
def test_what_does_not_fit_ends_the_log_and_not_the_worker(tmp_path, caplog, count, size, says):
    life = Life(tmp_path, 64 << 10, size=size)
    life.record(count)
    life.record(1)
    life.close()
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith("the event log of w0 is stopped: ")
    assert says in message
    assert "event_log_size (65536)" in message


def test_a_disk_that_is_too_slow_ends_the_log(tmp_path, caplog):
    life, awake = Life(tmp_path, 64 << 10), threading.Event()
    life.writer._work.put(awake.wait)
    for _ in range(MOST_WAITING + 5):
        life.writer.write([])
    awake.set()
    life.close()
    assert [record.message for record in caplog.records] == ["the event log of w0 is stopped: the disk is too slow"]


def test_the_last_life_stays_and_those_before_go(tmp_path):
    other = Life(tmp_path, 64 << 10, worker="w1")
    lives = []
    for incarnation in (1, 2, 3):
        lives.append(Life(tmp_path, 64 << 10, incarnation=incarnation))
        lives[-1].record(3)
        lives[-1].close()
    other.close()
    assert [bool(life.files()) for life in [other, *lives]] == [True, False, True, True]


def test_a_life_that_ends_at_its_start_leaves_no_log_without_a_beginning(tmp_path):
    class Killed(Counter):
        def snapshot(self) -> dict[str, object]:
            raise OSError("as if killed here")

    with open(tmp_path / "w0-earlier-1.1.starting", "wb"):
        writer = EventLogWriter(tmp_path, "w0", 2, 64 << 10)
    writer.begin(Killed(0))  # type: ignore[arg-type]
    writer.close(None)
    assert [path.suffix for path in tmp_path.iterdir()] == [".starting"], "of this life; what an earlier one left is gone"
    assert not list(tmp_path.glob("*-earlier-*"))


def test_a_folder_that_cannot_be_made_is_the_callers_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        EventLogWriter(tmp_path / "file" / "logs", "w0", 1, 64 << 10)

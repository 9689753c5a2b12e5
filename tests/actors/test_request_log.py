"""Logs of served requests: what is in them, their bound, and what is wrong with a line that cannot be read."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from blockwright.actors.tagger.request_log import MOST_WAITING, RequestLog, RequestLogError, line, read_requests
from blockwright.policies.prediction.lengths import LengthSample, features_of

PROMPT = [7001, 7002, 7003]


def lesson(number: int, *, whole: bool = True, application: str = "m") -> LengthSample:
    return LengthSample(features_of(application, [*PROMPT, number], 64, min_tokens=2), number, whole, 9)


def test_what_is_written_is_read_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = RequestLog(folder, "g0", 1 << 20)
    log.write([lesson(1), lesson(2, whole=False)])
    log.write([lesson(3, application="n")])
    log.close()
    log.close()
    (file,) = folder.iterdir()
    assert file.name == "g0.jsonl"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o700, 0o600]
    assert read_requests(folder) == read_requests(file) == [lesson(1), lesson(2, whole=False), lesson(3, application="n")]
    fields = json.loads(file.read_bytes().splitlines()[0])
    assert not {"tokens", "text", "id", "tenant", "key"} & fields.keys()
    assert not {"7001", "7002", "7003"} & {*file.read_text().replace(",", " ").split()}, "no token can be read"


def test_files_of_several_gateways_are_one_log_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "g0.jsonl").write_bytes(line(lesson(1), 1.0) + line(lesson(4), 4.0))
    (tmp_path / "g1.jsonl").write_bytes(line(lesson(3), 3.0))
    (tmp_path / "g1.1.jsonl").write_bytes(line(lesson(2), 2.0))
    assert [one.length for one in read_requests(tmp_path)] == [1, 2, 3, 4]


def test_it_goes_on_after_a_restart_without_the_line_that_was_torn(tmp_path: Path) -> None:
    file = tmp_path / "g0.jsonl"
    file.write_bytes(line(lesson(1), 1.0) + line(lesson(2), 2.0)[:50])
    assert read_requests(file) == [lesson(1)]
    log = RequestLog(tmp_path, "g0", 1 << 20)
    log.write([lesson(3)])
    log.close()
    assert read_requests(file) == [lesson(1), lesson(3)]


def test_both_files_stay_within_the_bound_and_the_last_requests_are_kept(tmp_path: Path) -> None:
    bound = 12 * len(line(lesson(1000), 1.0))
    log = RequestLog(tmp_path, "g0", bound)
    for number in range(1000, 1040):
        log.write([lesson(number)])
    log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"g0.jsonl", "g0.1.jsonl"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    assert sorted(one.length for one in read_requests(tmp_path))[-1] == 1039
    assert len(read_requests(tmp_path)) > 5


def test_a_disk_that_fails_ends_the_log_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    log = RequestLog(tmp_path / "file", "g0", 1 << 20)
    with caplog.at_level(logging.WARNING):
        log.write([lesson(1)])
        log.close()
        log.write([lesson(2)])
    assert "is stopped" in caplog.text


def test_a_disk_that_is_too_slow_ends_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(tmp_path, "g0", 1 << 20)
    log.close()  # nobody takes what is given now
    with caplog.at_level(logging.WARNING):
        for _ in range(MOST_WAITING + 2):
            log.write([lesson(1)])
    assert "the disk is too slow" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2, not 1"),
        ({"length": -1}, "length is -1, not a whole number of at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0, not a whole number of at least 1"),
        ({"length": 10**400}, "length is 1000000000000000000000000000000000000000, more than 1,000,000,000,000"),
        ({"at": float("nan")}, "at is nan, which is of another type"),
        ({"prompt": True}, "prompt is True, not a whole number"),
        ({"whole": 1}, "whole is 1, which is of another type"),
        ({"terms": [5, 5000]}, r"terms\[1\] is 5000, not a whole number from 0 to 1023"),
    ],
)
def test_a_line_that_cannot_be(tmp_path: Path, change: dict[str, object], message: str) -> None:
    good = line(lesson(1), 1.0)
    file = tmp_path / "g0.jsonl"
    file.write_bytes(good + json.dumps(json.loads(good) | change).encode() + b"\n")
    with pytest.raises(RequestLogError, match=rf"g0.jsonl, line 2: {message}.*; delete the line"):
        read_requests(file)


def test_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(RequestLogError, match="nowhere: No such file or directory; name a file or folder"):
        read_requests(tmp_path / "nowhere")
    (tmp_path / "g0.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RequestLogError, match=r"g0\.jsonl, line 1"):
        read_requests(tmp_path)
    (tmp_path / "g0.jsonl").write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(RequestLogError, match=r"g0\.jsonl, line 1: maximum recursion depth"):
        read_requests(tmp_path)
    (tmp_path / "g0.jsonl").write_bytes(b"[]\n")
    with pytest.raises(RequestLogError, match=r"g0\.jsonl, line 1: format is None, not 1"):
        read_requests(tmp_path)

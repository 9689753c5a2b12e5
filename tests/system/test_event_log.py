"""Event logs of served workers: what a killed worker leaves is replayed elsewhere, and a failing test leaves its logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.api.commands.trace import replay
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until

pytestmark = pytest.mark.system


def replayed(path: Path) -> Any:
    """In another process, whose sets have another order."""
    command = [sys.executable, "-m", "blockwright", "trace", "replay", str(path), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return json.loads(done.stdout)


@claim("The event log of a worker replays its plans bit by bit, also after kill -9", of="serving")
@pytest.mark.nightly
@pytest.mark.parametrize("pipeline", [1, 2])
async def test_a_killed_worker_is_replayed(serve: Callable[..., Server], pipeline: int) -> None:
    server = serve(pipeline=pipeline, memory="1MiB", chunk_size=16).whole()
    async with Client(server) as client:
        await client.ready()
        with slow(server):
            answers = client.load(16)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            await client.leave(answers[0])
            await client.kill("w1")
        await client.finished()
        await client.ready()
    server.stop(check_logs=False)
    logs = {(log.header.worker, log.header.incarnation): log.path for log in map(EventLog, server.event_logs.files("w*"))}
    assert set(logs) == {("w0", 1), ("w1", 1), ("w1", 2)}
    killed = replayed(logs["w1", 1])
    assert (killed["agrees"], killed["ended"], killed["failed"]) == (True, False, "")
    assert killed["sweeps"] > 3
    assert replay(logs["w0", 1]).ended
    (path,) = server.event_logs.files("controller")
    controller = replayed(path)
    assert (controller["agrees"], controller["ended"]) == (True, True)
    assert min(controller["events"], controller["effects"]) > 3
    server.event_logs.finish()


TESTS = """
from pathlib import Path
import pytest
from blockwright.actors.worker.event_log_file import Header, encode_header, entry_encoder
from blockwright.tests.policies.event_tape import Tape, make_state
from blockwright.tests.system.event_logs import EventLogs, embedded_logs, logs_root

@pytest.fixture
def server(logs_root):
    logs, header = EventLogs(), Header(version="0", worker="w0", incarnation=1, part=1, written=0.0)
    log = encode_header(header) + entry_encoder()(Tape(make_state()).began)
    (logs.folder / "w0-1.1.events").write_bytes(log)
    yield logs
    logs.finish()

def test_passes(server): pass

def test_passes_once_it_has_ended(server): server.finish()

@pytest.mark.parametrize("way", ["a/b"])
def test_fails(server, way): assert server is None

def test_fails_once_it_has_ended(server):
    server.finish()
    assert server is None

def test_nothing_is_kept_of_what_passed(): assert not [*EventLogs.root.glob("logs-*/*.events")]
"""


@pytest.mark.nightly
def test_a_failing_test_leaves_its_logs_behind(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "blockwright.tests.system.event_logs", "test_two.py"]
    command += ["--basetemp", str(tmp_path / "temporary"), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "2 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    left = sorted((tmp_path / "temporary").rglob("*.events"))
    assert ["ended" in str(path) for path in left] == [False, True]
    for path in left:
        assert EventLog(path).header.worker == "w0"
        assert str(path) in done.stdout

"""The benchmark of the head's death: who the head is, and when its bars are missed."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import head_death
from harness import OURS, Report, misses

from blockwright.tests.waiting import until_now

ENDS_WITH_ITS_INPUT = "import sys; sys.stdin.read()"


def test_the_head_is_known_by_its_title_among_the_processes_of_a_server() -> None:
    server: Any = SimpleNamespace(process=SimpleNamespace(pid=os.getpid()))
    assert head_death.head_of(server) == 0
    command = ["blockwright: head", "-c", ENDS_WITH_ITS_INPUT]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE) as head:
        until_now(lambda: head_death.head_of(server) == head.pid, "the head is found")
        head.communicate()
    assert head_death.head_of(server) == 0


def report(gap: float, admin: float) -> Report:
    made = Report("head_death", {})
    for how in head_death.SIGNALS:
        made.add(f"head/{how}", OURS, {"gap_ms": gap, "admin_ms": admin})
        made.add(f"head/{how}", head_death.WORKER, {"gap_ms": 400.0})
        made.add(f"head/{how}", head_death.COLD, {"admin_ms": 3000.0})
    return made


def test_a_longer_pause_than_at_a_workers_death_and_more_than_half_a_cold_start_are_misses() -> None:
    assert misses(report(400.0, 1500.0), head_death.BARS) == []
    assert misses(report(420.0, 1600.0), head_death.BARS) == [
        "head/kill gap_ms: 1.05 times a worker's death, the bar is at most 1",
        "head/stop gap_ms: 1.05 times a worker's death, the bar is at most 1",
        "head/kill admin_ms: 0.5333 times cold start, the bar is at most 0.5",
    ]

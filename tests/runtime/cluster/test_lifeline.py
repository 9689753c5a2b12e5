"""The lifeline and the watch of a process, with processes that hang or are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from blockwright.runtime.cluster.lifeline import Lifeline, tie
from blockwright.runtime.cluster.process_watch import ProcessWatch, begun_at
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system


def forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
            time.sleep(10 * PATIENCE)
        finally:
            os._exit(7)
    return pid


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_all_that_are_tied_are_killed_also_one_that_is_stopped() -> None:
    lifeline = Lifeline()
    said, say = os.pipe()

    def run() -> None:
        os.close(lifeline._held)  # as in a program that is executed
        tie(lifeline.end)
        os.write(say, b".")

    pids = [forked(run) for _ in range(3)]
    for _ in pids:
        os.read(said, 1)
    os.kill(pids[0], signal.SIGSTOP)
    lifeline.close()
    assert [status(pid) for pid in pids] == [-signal.SIGKILL] * 3
    os.close(said)
    os.close(say)
    lifeline.close()


def test_who_is_tied_too_late_ends_at_once() -> None:
    lifeline = Lifeline()
    end = os.dup(lifeline.end)
    lifeline.close()
    assert status(forked(lambda: tie(end))) == 1
    os.close(end)


async def test_a_watch_tells_of_an_end_and_never_means_another_process() -> None:
    pid = forked(lambda: None)
    begun = begun_at(pid)
    with pytest.raises(ProcessLookupError, match="is another one now"):
        ProcessWatch(pid, begun + 1)
    watch, ended = ProcessWatch(pid, begun), asyncio.Event()
    watch.on_end(ended.set)
    assert not ended.is_set()
    watch.kill()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    assert status(pid) == -signal.SIGKILL
    watch.kill()  # nothing is there
    watch.close()
    watch.close()
    assert begun_at(pid) == 0
    with pytest.raises(ProcessLookupError):
        ProcessWatch(pid, begun)

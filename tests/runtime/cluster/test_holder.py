"""The process that holds the pipes of what is started elsewhere: heads come and go, and it ends with all."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from blockwright.runtime.cluster.held import HOLDER_GONE, HeldEnd, HeldProcesses
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.tests.runtime.cluster.holding import HolderProcess
from blockwright.tests.runtime.cluster.test_command_launcher import alive
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
ENDLESS = "sleep 1000 & wait"


class Head:
    """A head's end, and what it has heard."""

    def __init__(self, process: HolderProcess | ForkserverLauncher) -> None:
        self.ends: list[HeldEnd] = []
        self.said: list[tuple[str, str]] = []
        self.held = HeldProcesses(process.holder, self.ends.append, lambda *said: self.said.append(said))
        if isinstance(process, HolderProcess):
            process.users.append(self.held)

    async def start(self, key: str, script: str, text: str = "", *, tells: bool = False) -> int:
        return await self.held.start(key, ["sh", "-c", script], text, note=f"note of {key}", tells=tells)

    async def end(self, key: str) -> HeldEnd:
        await until(lambda: any(end.key == key for end in self.ends), f"the end of {key}")
        return next(end for end in self.ends if end.key == key)


async def test_what_a_head_starts_is_found_by_the_next_one(process: HolderProcess) -> None:
    first, second = Head(process), Head(process)
    assert await first.held.find() == {}
    assert process.processes == [], "none is needed yet"
    pid = await first.start("a", "read text; echo $text; cat > /dev/null; exit 3", "hello", tells=True)
    await until(lambda: first.said, "it speaks to the head")
    assert first.said == [("a", "hello")]
    await first.held.leave()
    assert await second.held.find() == {"a": "note of a"}
    assert (second.held.pids, second.ends) == ({"a": pid}, [])
    second.held.close("a")
    end = await second.end("a")
    assert (end.status, end.words, end.note, second.held.pids) == (3, "", "note of a", {})
    assert first.ends == []
    await second.held.stop()
    assert [one.wait() for one in process.processes] == [0]


async def test_what_ended_or_was_said_without_a_head_is_heard_by_the_next_one(
    process: HolderProcess, tmp_path: Path
) -> None:
    first, second = Head(process), Head(process)
    await first.start("a", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo last words; exit 4")
    await first.start(
        "b", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo told; touch {tmp_path}/gone", tells=True
    )
    await first.held.leave()
    (tmp_path / "go").touch()
    await until((tmp_path / "gone").exists, "both have ended")
    await second.held.find()
    assert (await second.end("a")).words == "last words"
    assert (await second.end("b")).status == 0
    assert second.said == [("b", "told")]


async def test_the_newest_head_is_obeyed(process: HolderProcess) -> None:
    former, head = Head(process), Head(process)
    pid = await former.start("a", ENDLESS)
    await head.held.find()
    await until(lambda: former.ends, "the former one has lost it")
    assert [(end.key, end.words, end.note) for end in former.ends] == [("a", HOLDER_GONE, "note of a")]
    assert (alive(pid), head.ends) == (True, [])
    head.held.kill("a")
    assert (await head.end("a")).status == -signal.SIGKILL


async def test_its_end_is_the_end_of_what_it_holds_and_another_is_forked(process: HolderProcess, tmp_path: Path) -> None:
    head = Head(process)
    await head.start("a", f"cat; touch {tmp_path}/ended")
    process.processes[0].kill()
    assert (await head.end("a")).words == HOLDER_GONE
    await until((tmp_path / "ended").exists, "its standard input was closed")
    await head.start("b", ENDLESS)
    assert len(process.processes) == 2


async def test_who_it_serves_for_ends_and_so_does_all(process: HolderProcess, tmp_path: Path) -> None:
    head = Head(process)
    stubborn = await head.start("a", ENDLESS)
    await head.start("b", f"cat; touch {tmp_path}/by-itself")
    await head.held.leave()
    process.cut()
    assert await asyncio.to_thread(process.processes[0].wait) == 0
    assert (tmp_path / "by-itself").exists()
    await until(lambda: not alive(stubborn), "it is killed")


async def test_what_reads_nothing_is_ended_before_it_holds_all_up(process: HolderProcess) -> None:
    head = Head(process)
    await head.start("a", ENDLESS)
    for _ in range(3):
        head.held.say("a", "x" * 40_000)
    assert (await head.end("a")).status == -signal.SIGKILL


async def test_a_program_that_is_not_there_is_said_and_a_stopped_one_starts_nothing(process: HolderProcess) -> None:
    head = Head(process)
    with pytest.raises(LaunchError, match=r"^No such file or directory$"):
        await head.held.start("a", ["no-such-program"])
    await head.held.stop()
    with pytest.raises(LaunchError, match="the launcher was stopped"):
        await head.start("a", "true")


async def test_a_start_that_is_given_up_is_ended(process: HolderProcess) -> None:
    head = Head(process)
    await head.start("first", "true")
    starting = asyncio.create_task(head.start("a", ENDLESS))
    await asyncio.sleep(0)
    starting.cancel()
    assert (await head.end("a")).status == -signal.SIGKILL
    assert starting.cancelled()


async def test_the_forkserver_forks_one_which_outlives_it_and_ends_with_the_head(tmp_path: Path) -> None:
    launcher = ForkserverLauncher(tmp_path / "sockets")
    assert await launcher.holder(fork=False) is None
    await launcher.start(lambda *_: None)
    head = Head(launcher)
    pid = await head.start("a", ENDLESS)
    forkserver = launcher._process.pid
    os.kill(forkserver, signal.SIGKILL)
    await until(lambda: launcher._process.pid != forkserver, "there is another forkserver")
    other = Head(launcher)
    assert await other.held.find() == {"a": "note of a"}
    await other.held.leave()
    await launcher.stop()
    await until(lambda: not alive(pid), "it ends with the head")


async def test_without_a_forkserver_nothing_is_started_elsewhere() -> None:
    with pytest.raises(LaunchError, match="nothing can be started elsewhere from here"):
        await InProcessLauncher().holder(fork=True)

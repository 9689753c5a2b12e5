"""Reports of what holds an event loop; for a real process see ``tests/runtime/cluster/test_processes.py``."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.node.stall_watch import MOST_TEXT, StallWatch, hung, note_of
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE
from blockwright.transport.address import PeerId


class Stuck(Actor):
    def __init__(self, until: threading.Event) -> None:
        self._until = until

    @endpoint
    async def work(self) -> None:
        assert self._until.wait(PATIENCE)


@claim("A hang is not reported as a crash or an unreachable node, but with the endpoint that blocks", of="actor-runtime")
async def test_the_endpoint_and_the_line_are_named_once_for_each_stall() -> None:
    node = Node("alone", listen=False)
    await node.start()
    seen = list[str]()
    gone = threading.Event()
    goes_on = threading.Event()
    stuck = await node.spawn(Stuck(goes_on), name="stuck")

    def tell(sentence: str) -> None:
        seen.append(sentence)
        goes_on.set()  # the endpoint ends only because it was found

    watch = StallWatch(node.actors.instances.values, 0.02, tell, gone.set)
    await stuck.work()
    assert await asyncio.to_thread(gone.wait, PATIENCE)
    watch.close()
    await node.stop()
    who = r"endpoint work of actor stuck \(Stuck\) has held the event loop for more than 0.02 s, at .*threading.py:\d+ in .*"
    assert re.fullmatch(who + r"; run what computes or waits in a thread: await asyncio.to_thread\(...\)", seen[0])


def test_the_note_of_a_node_is_its_cause_and_is_taken_away(tmp_path: Path) -> None:
    node = PeerId("w0", 2)
    assert hung("", node) == hung(str(tmp_path), node) == "hung"
    note_of(tmp_path, node).write_text("x" * 5000)
    assert hung(str(tmp_path), PeerId("w0", 1)) == "hung", "of an earlier life"
    assert hung(str(tmp_path), node) == "hung: " + MOST_TEXT * "x"
    assert hung(str(tmp_path), node) == "hung"

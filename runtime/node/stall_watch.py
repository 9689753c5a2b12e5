"""A watchdog that says which endpoint holds the event loop: a thread that looks when the loop no longer answers it.

Owns the thread. A node whose loop stands still falls silent and is declared "hung" (``cluster.py``); it cannot say why, and
this can. Native code that keeps the interpreter's lock stops the thread, too: then nothing is said.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from ...transport.address import PeerId
from ..actor.instance import ActorInstance

REMEDY = "run what computes or waits in a thread: await asyncio.to_thread(...)"
MOST_TEXT = 1000  # characters of a note that is read


class StallWatch:
    """The stall watch of the loop that it is made on. patience: seconds without an answer after which a stall is
    reported; report: called in the thread, with the sentence, once for each stall; over: called there when the loop answers
    again.
    """

    def __init__(
        self,
        instances: Callable[[], Iterable[ActorInstance]],
        patience: float,
        report: Callable[[str], None],
        over: Callable[[], None],
    ) -> None:
        self._instances = instances
        self._patience = patience
        self._report = report
        self._over = over
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._answered, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="blockwright-stalls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._answered.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._patience / 2):
            self._answered.clear()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if self._answered.wait(self._patience):
                continue
            if self._closed.is_set():
                return
            self._report(self.sentence())
            self._answered.wait()
            self._over()

    def sentence(self) -> str:
        """Return a sentence that names the code that holds the loop now, and the remedy."""
        try:
            who = self._who(asyncio.current_task(self._loop))
        except RuntimeError:  # a set that is walked here was changed there: then it is no longer stuck
            who = "something"
        frame = sys._current_frames().get(self._thread_id)
        where = f", at {_place(frame)}" if frame is not None else ""
        return f"{who} has held the event loop for more than {self._patience:g} s{where}; {REMEDY}"

    def _who(self, task: asyncio.Task[object] | None) -> str:
        for instance in self._instances():
            for delivery in instance.running:
                if task is not None and delivery.task is task:
                    return f"endpoint {delivery.endpoint.name} of actor {instance.name} ({type(instance.actor).__name__})"
        return f"task {task.get_name()}" if task is not None else "a callback"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"


def note_of(directory: Path | str, node: PeerId) -> Path:
    """Return the file in the cluster's directory that names the code that holds that node's loop, while it is held."""
    return Path(directory) / f"{node.name}-{node.incarnation}.stall"


def hung(directory: str, node: PeerId) -> str:
    """Return the cause of the end of a node whose loop is stalled, with the code that held it if known.

    Removes the note.
    """
    if not directory:
        return "hung"
    note = note_of(directory, node)
    try:
        report = note.read_text(errors="replace")[:MOST_TEXT]
        note.unlink()
    except OSError:
        return "hung"
    return f"hung: {report}"

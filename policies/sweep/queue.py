"""The two orders of a worker's sequences: who starts next, and who runs, oldest first.

A key is (priority, arrival, sequence): lower priorities first, then earlier arrivals. A sequence keeps its key for life, so
one that was preempted returns to its old place.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from blockwright.policies.plain import Plain

Key = tuple[int, float, int]


class SequenceQueue:
    """Sorted lists; adding and removing looks at no other sequence."""

    def __init__(self) -> None:
        self._waiting: list[Key] = []
        self._running_keys: list[Key] = []
        self.running: list[int] = []  # sequences of ``_running_keys``: those at home here; oldest first

    @property
    def waiting(self) -> int:
        """How many sequences wait to start."""
        return len(self._waiting)

    def first(self) -> int:
        """The sequence that starts next."""
        return self._waiting[0][2]

    def push(self, key: Key) -> None:
        """Wait for the start."""
        insort(self._waiting, key)

    def pop(self) -> None:
        """The first sequence has started, or waits for something else now."""
        del self._waiting[0]

    def remove(self, key: Key) -> None:
        """A waiting sequence leaves."""
        del self._waiting[_place(self._waiting, key)]

    def start(self, key: Key) -> None:
        """A sequence at home runs."""
        place = bisect_left(self._running_keys, key)
        self._running_keys.insert(place, key)
        self.running.insert(place, key[2])

    def stop(self, key: Key) -> None:
        """It runs no more."""
        place = _place(self._running_keys, key)
        del self._running_keys[place], self.running[place]

    def fork(self) -> SequenceQueue:
        copy = SequenceQueue()
        copy._waiting, copy._running_keys, copy.running = (
            self._waiting.copy(),
            self._running_keys.copy(),
            self.running.copy(),
        )
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {"waiting": [list(key) for key in self._waiting], "running": [list(key) for key in self._running_keys]}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> SequenceQueue:
        queue = cls()
        queue._waiting = [(key[0], key[1], key[2]) for key in data["waiting"]]
        queue._running_keys = [(key[0], key[1], key[2]) for key in data["running"]]
        queue.running = [key[2] for key in queue._running_keys]
        return queue

    def check(self, waiting: list[Key], running: list[Key]) -> None:
        """Both orders hold exactly the keys of the sequences whose status says so."""
        assert self._waiting == sorted(waiting), "the waiting queue is out of order, or has lost a sequence"
        assert self._running_keys == sorted(running), "the running order is wrong, or has lost a sequence"
        assert self.running == [key[2] for key in self._running_keys], "running sequences and their keys differ"


def _place(keys: list[Key], key: Key) -> int:
    place = bisect_left(keys, key)
    assert place < len(keys), "a queue has lost a sequence"
    assert keys[place] == key, "a queue has lost a sequence"
    return place

"""Whose batch runs next: turns among accounts, and when what failed is tried again.

Of each account the oldest batch runs, and so many at a time, so that nobody's long job keeps the others waiting. A batch
that has been checked has its prompts in memory and its file open, so not many are ahead of their turn: of an account the one
that follows, of all as many again as may run. Pure; what a batch is, and where it stands, whoever asks knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

RETRY, LONGEST = 1.0, 8.0  # seconds until the first try again; each is twice as long as the one before, up to this
PREPARED = 2  # batches of an account that run or are ready to, and for each that may run at a time


def next_to_run(waiting: Iterable[tuple[str, str]], running: Sequence[str], most: int) -> list[str]:
    """Batches that start now. ``waiting``: (batch, account) of those that are ready, the oldest first; ``running``: accounts
    of those that run; ``most``: how many may at a time."""
    busy, found = {*running}, list[str]()
    for batch, account in waiting:
        if len(running) + len(found) >= most:
            break
        if account not in busy:
            busy.add(account)
            found.append(batch)
    return found


def next_to_prepare(queued: Iterable[tuple[str, str]], prepared: Iterable[str], most: int) -> list[str]:
    """Batches that are checked now. ``queued``: (batch, account), the oldest first; ``prepared``: accounts of those that
    run, are ready to, or are being checked; ``most``: as above."""
    ahead, found = Counter(prepared), list[str]()
    left = PREPARED * most - ahead.total()
    for batch, account in queued:
        if len(found) >= left:
            break
        if ahead[account] < PREPARED:
            ahead[account] += 1
            found.append(batch)
    return found


def again(tries: int, now: float) -> float:
    """When to try once more what has failed before so many times."""
    return now + min(LONGEST, RETRY * 2.0**tries)


def due(when: float | None, now: float) -> bool:
    """Whether what could not be done is tried again; None: it has not failed. A clock that was put back keeps nobody
    waiting."""
    return when is None or not now < when <= now + LONGEST

"""Turns of batches: which account's batch runs next, and when a failed step is tried again.

The oldest batch of each account runs, and a limited number at a time, so that one account's long job does not keep the
others waiting. A checked batch has its prompts in memory and its file open, so few are checked ahead of their turn: the
next one of an account, and in total as many again as may run. Pure; the caller knows the batches and their states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

RETRY, LONGEST = 1.0, 8.0  # seconds until the first retry; each wait is twice the one before, up to the limit
PREPARED = 2  # limit of an account's batches that run or are ready; also a factor of the total


def next_to_run(waiting: Iterable[tuple[str, str]], running: Sequence[str], limit: int) -> list[str]:
    """Return the batches that start now.

    waiting: (batch, account) of ready ones, the oldest first. running: accounts of running ones. limit: most running
    ones.
    """
    busy, found = {*running}, list[str]()
    for batch, account in waiting:
        if len(running) + len(found) >= limit:
            break
        if account not in busy:
            busy.add(account)
            found.append(batch)
    return found


def next_to_prepare(queued: Iterable[tuple[str, str]], prepared: Iterable[str], limit: int) -> list[str]:
    """Return the batches to check now.

    queued: (batch, account), the oldest first. prepared: accounts of batches that run, are ready, or are being checked.
    limit: as above.
    """
    ahead, found = Counter(prepared), list[str]()
    left = PREPARED * limit - ahead.total()
    for batch, account in queued:
        if len(found) >= left:
            break
        if ahead[account] < PREPARED:
            ahead[account] += 1
            found.append(batch)
    return found


def again(tries: int, now: float) -> float:
    """Return the time of the next retry after ``tries`` failures."""
    return now + min(LONGEST, RETRY * 2.0**tries)


def due(when: float | None, now: float) -> bool:
    """Return whether a retry is due; None: nothing has failed. A clock that was set back delays no retry."""
    return when is None or not now < when <= now + LONGEST

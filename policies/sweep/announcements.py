"""Pages that are about to be made: who makes them, and who waits instead of making them too.

A sequence that starts, or asks for leases in order to start, announces the full prompt pages that it will compute. A later
sequence that could then skip them is parked until the last of them is published, or until its maker leaves; then it goes
back to the queue, and the first to start takes over.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from blockwright.policies.sweep.rows import Status

if TYPE_CHECKING:
    from blockwright.policies.sweep.state import SweepState

Key = tuple[bytes, bytes]  # token hash, lineage of the last local span


def announce(state: SweepState, s: int) -> None:
    """Others can wait for the full prompt pages that ``s`` will make."""
    rows = state.rows
    spans = rows.route[s].spans
    if not spans or rows.home[s]:
        return
    for token_hash in rows.hashes[s][rows.computed[s] // state.config.page_size :]:
        if any(state.pages.find(token_hash, span) is None for span in spans):
            state.announced.setdefault((token_hash, spans[-1].lineage), s)


def made(state: SweepState, s: int, token_hash: bytes) -> None:
    """``s`` has published a page."""
    key = (token_hash, state.rows.route[s].spans[-1].lineage)
    if state.announced.get(key) == s:
        _clear(state, key)


def withdraw(state: SweepState, s: int) -> None:
    """``s`` leaves: nobody need wait for it any more."""
    spans = state.rows.route[s].spans
    if spans and not state.rows.home[s]:
        for token_hash in state.rows.hashes[s]:
            made(state, s, token_hash)


def park(state: SweepState, s: int) -> bool:
    """True when ``s``, taken from the queue, waits for pages of another sequence that it can then skip."""
    rows = state.rows
    spans = rows.route[s].spans
    if not spans or rows.home[s] or rows.submission[s].scored:
        return False
    last = None
    for token_hash in rows.hashes[s][: (rows.known[s] - 1) // state.config.page_size]:
        key = (token_hash, spans[-1].lineage)
        if state.announced.get(key, s) != s:
            last = key
        elif any(state.pages.find(token_hash, span) is None for span in spans):
            break
    if last is None or all(state.pages.find(last[0], span) is not None for span in spans):
        return False
    rows.status[s] = Status.PARKED
    state.parked.setdefault(last, {})[s] = None
    state.counters["parked"] += 1
    return True


def unpark(state: SweepState, s: int) -> None:
    """``s`` waits no more because it leaves."""
    for sleepers in state.parked.values():
        sleepers.pop(s, None)


def _clear(state: SweepState, key: Key) -> None:
    del state.announced[key]
    for sleeper in state.parked.pop(key, {}):
        state.rows.status[sleeper] = Status.WAITING
        insort(state.waiting, state.rows.order(sleeper))

"""The admission rules for sequences: whether one can ever be served, and whether it can be now, beside the others.

The gateway and the worker apply the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..binary_size import binary_size
from .refusal import SHORTER_ANSWER

# reasons of a worker to give a sequence back (``GivenBack.reason``); all but ``YIELDED`` are followed by a sentence
YIELDED = "yielded"  # an offline sequence without room now
CROWDED = "crowded: "  # other applications' parameters leave too little memory
REFUSED = "refused: "  # it can never be served
UNHELD = "unheld: "  # its grammar cannot be held, and could not elsewhere
BROKEN = "broken: "  # its model has computed a value that is not a number, and would again


def admit(tokens: int, capacity: int, beside: int = 0) -> str | None:
    """Return None if a sequence of ``tokens`` (prompt and answer) fits ``capacity`` tokens, else the sentence why not.

    ``beside``: bytes of its compiled grammar with the table of tokens, which leave this capacity.
    """
    if tokens <= capacity:
        return None
    left = f"{max(capacity, 0)}"
    left += f" beside the {binary_size(beside)} of its compiled constraint and the table of tokens" if beside else ""
    return (
        f"the sequence needs memory for {tokens} tokens and a worker has memory for {left}; "
        f"{SHORTER_ANSWER}, shorten the prompt, or give workers more memory (--set memory=...)"
    )


def capacity_tokens(free_bytes: int, page_size: int, page_bytes: int) -> int:
    """Return the tokens of one sequence that fit ``free_bytes``. ``page_bytes``: size of a page on all its local layers."""
    return page_size * (free_bytes // page_bytes) if page_bytes else 1 << 62


def cramped(worker: str, application: str, room: int, page_bytes: int) -> str:
    """Return why a worker with ``room`` bytes left for KV can serve no request of an application: a sentence, or empty."""
    if room >= page_bytes:
        return ""
    return (
        f"worker {worker} has {binary_size(room)} left for sequences of {application}, less than one page of "
        f"{binary_size(page_bytes)}; give workers more memory (--set memory=...)"
    )


def part(limit: int, own: int, others: int, sharers: int) -> int:
    """Return what one of ``sharers`` may hold of ``limit`` while it holds ``own`` and the rest of them ``others``.

    It is an equal part of what is free, above what it has. All of them together keep the limit, and a single busy one
    comes to hold nearly all of it, a part at a time.
    """
    return own + -(-max(0, limit - own - others) // sharers)


def concurrent(rooms: Iterable[int], tokens: int, rows: int) -> int:
    """Return how many sequences of ``tokens`` run at a time on routes with ``rooms`` tokens and ``rows`` sequences each."""
    return sum(min(room // tokens, rows) for room in rooms)

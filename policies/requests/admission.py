"""Whether a sequence can be served: ever, by one rule for the gateway and the worker; now, beside what others hold."""

from __future__ import annotations

from collections.abc import Iterable

from ..binary_size import binary_size

# why a worker gives a sequence back (``GivenBack.reason``): before a sentence that says so, but for ``YIELDED``
YIELDED = "yielded"  # an offline one, for which there is no room now
CROWDED = "crowded: "  # the parameters of other applications leave too little
REFUSED = "refused: "  # it can never be served
BROKEN = "broken: "  # its model has computed what is no number, and would again


def admit(tokens: int, capacity: int) -> str | None:
    """None when a sequence of ``tokens`` (prompt and answer) fits ``capacity`` tokens, else the sentence why not."""
    if tokens <= capacity:
        return None
    return (
        f"the sequence needs memory for {tokens} tokens and a worker has memory for {max(capacity, 0)}; "
        "lower max_tokens, shorten the prompt, or give workers more memory (--set memory=...)"
    )


def capacity_tokens(free_bytes: int, page_size: int, page_bytes: int) -> int:
    """Tokens of one sequence that fit ``free_bytes``, ``page_bytes`` being what a page of all its local layers takes."""
    return page_size * (free_bytes // page_bytes) if page_bytes else 1 << 62


def cramped(worker: str, application: str, room: int, page_bytes: int) -> str:
    """Why a worker can serve nobody of an application where it has ``room`` bytes left for KV: a sentence, or empty."""
    if room >= page_bytes:
        return ""
    return (
        f"worker {worker} has {binary_size(room)} left for sequences of {application}, less than one page of "
        f"{binary_size(page_bytes)}; give workers more memory (--set memory=...)"
    )


def part(limit: int, own: int, others: int, sharers: int) -> int:
    """What one of ``sharers`` may hold of ``limit`` while it holds ``own`` and the rest of them ``others``.

    An equal part of what is free, above what it has: all of them together keep the limit, and one that is alone in being
    busy comes to hold nearly all of it, a part at a time.
    """
    return own + -(-max(0, limit - own - others) // sharers)


def concurrent(rooms: Iterable[int], tokens: int, rows: int) -> int:
    """Sequences of ``tokens`` that run at a time on routes that hold ``rooms`` tokens and ``rows`` sequences each."""
    return sum(min(room // tokens, rows) for room in rooms)

"""Whether a sequence can ever be served: one rule for the gateway and the worker."""

from __future__ import annotations

from collections.abc import Iterable


def admit(tokens: int, capacity: int) -> str | None:
    """None when a sequence of ``tokens`` (prompt and answer) fits ``capacity`` tokens, else the sentence why not."""
    if tokens <= capacity:
        return None
    return (
        f"the sequence needs memory for {tokens} tokens and a worker has room for {max(capacity, 0)}; "
        "lower max_tokens, shorten the prompt, or give workers more memory (--set memory=...)"
    )


def capacity_tokens(free_bytes: int, page_size: int, page_bytes: int) -> int:
    """Tokens of one sequence that fit ``free_bytes``, ``page_bytes`` being what a page of all its local layers takes."""
    return page_size * (free_bytes // page_bytes) if page_bytes else 1 << 62


def concurrent(rooms: Iterable[int], tokens: int, rows: int) -> int:
    """Sequences of ``tokens`` that run at a time on routes that hold ``rooms`` tokens and ``rows`` sequences each."""
    return sum(min(room // tokens, rows) for room in rooms)

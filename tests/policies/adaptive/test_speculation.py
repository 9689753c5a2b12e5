"""The surrogate that drafts: the one that promises most tokens for the bytes that are read, never at the end of a chain."""

from __future__ import annotations

from blockwright.policies.adaptive.speculation import DraftingSurrogate, best_surrogate, drafting_chain


def test_agreement_and_bytes_decide() -> None:
    small = DraftingSurrogate(1, 3, 10, 0.99)
    wide = DraftingSurrogate(1, 9, 45, 0.9)
    poor = DraftingSurrogate(1, 9, 45, 0.3)
    assert best_surrogate([small, wide, poor], 12, 100) == 1
    assert best_surrogate([poor, small], 12, 100) == 1
    assert best_surrogate([small, small], 12, 100) == 0


def test_never_at_the_last_block() -> None:
    last = DraftingSurrogate(4, 12, 45, 0.9)
    assert best_surrogate([last], 12, 100) == -1
    assert best_surrogate([last, DraftingSurrogate(1, 3, 1, 0.5)], 12, 100) == 1
    assert best_surrogate([], 12, 100) == -1
    assert drafting_chain("a") == "a~surrogate"

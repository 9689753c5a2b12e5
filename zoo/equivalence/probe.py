"""The probe of a comparison: rows of tokens that both models read, and the positions and tokens at which they are compared.

Models with the same tokenizer read the same rows. Others read the same texts as their own tokens: they are compared behind
each piece of text that ends a token of both, and on the tokens that both vocabularies have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...gpu.errors import CheckpointError

ROWS, LENGTH = 256, 128  # of a probe, in tokens
TOKENS = ROWS * LENGTH
LEAST_SHARED = 16  # tokens that two vocabularies must share
LEAST_POSITIONS = TOKENS // 8  # at which two tokenizers must end a token both

Row = tuple[int, ...]
TokenTexts = Mapping[int, tuple[bool, bytes]]  # by token: whether it is a special one, and its bytes or name


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of both models, side by side.

    ``places`` are the positions to compare in each row, of both models. ``shared`` are the tokens of both vocabularies,
    paired by their text; empty if the vocabularies are equal.
    """

    rows: tuple[Row, ...]
    other_rows: tuple[Row, ...]
    places: tuple[tuple[Row, Row], ...]
    shared: tuple[Row, Row] = ((), ())

    @property
    def same_tokens(self) -> bool:
        return not self.shared[0]

    @property
    def tokens(self) -> int:
        """The number of positions that are compared."""
        return sum(len(own) for own, _ in self.places)

    def turned(self) -> Probe:
        """Return the probe as the other model sees it."""
        places = tuple((other, own) for own, other in self.places)
        return Probe(self.other_rows, self.rows, places, (self.shared[1], self.shared[0]))

    def digest(self, prompts: Sequence[object], stitches: Sequence[str] = ()) -> str:
        """Return a hash of the probe, and of the prompts and stitches that go with it, in hexadecimal digits."""
        parts = (self, [*prompts], [*stitches]) if stitches else (self, [*prompts])
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def cut(rows: Sequence[Row], where: str, purpose: str = "a comparison") -> tuple[Row, ...]:
    """Return the first rows with ``TOKENS`` tokens in all, each cut to ``LENGTH``. Raises CheckpointError for too few."""
    found: list[Row] = []
    room = TOKENS
    for row in rows:
        if room:
            found.append(row[: min(LENGTH, room)])
            room -= len(found[-1])
    if room:
        raise CheckpointError(
            f"{where} has {TOKENS - room:,} tokens; {purpose} needs {TOKENS:,} ({ROWS} x {LENGTH}); give a longer text"
        )
    return tuple(found)


def same_probe(rows: Sequence[Row]) -> Probe:
    """Return the probe of two models with the same tokenizer."""
    places = tuple((tuple(range(len(row))),) * 2 for row in rows)
    return Probe(tuple(rows), tuple(rows), places)


def shared_tokens(texts: TokenTexts, other_texts: TokenTexts, names: tuple[str, str]) -> list[tuple[int, int]]:
    """Return the tokens of two models with the same text. Raises CheckpointError if there are too few."""
    by_text = {text: token for token, text in reversed([*other_texts.items()]) if text[1]}
    shared = [(token, by_text[text]) for token, text in texts.items() if text in by_text]
    if len(shared) < LEAST_SHARED:
        raise CheckpointError(
            f"the vocabularies of {names[0]} ({len(texts):,} tokens) and {names[1]} ({len(other_texts):,}) share "
            f"{len(shared)}; a comparison needs {LEAST_SHARED}; name models with related tokenizers"
        )
    return shared


def paired_probe(
    rows: Sequence[Row], other_rows: Sequence[Row], texts: TokenTexts, other_texts: TokenTexts, names: tuple[str, str]
) -> Probe:
    """Return the probe of two models with different tokenizers, whose rows hold the same texts.

    Raises CheckpointError if their vocabularies, or the borders of their tokens, have too little in common.
    """
    shared = shared_tokens(texts, other_texts, names)
    places = []
    for row, other in zip(rows, other_rows, strict=True):
        own_ends, other_ends = _ends(row, texts), _ends(other, other_texts)
        both = [end for end in own_ends if end in other_ends]
        places.append((tuple(own_ends[end] for end in both), tuple(other_ends[end] for end in both)))
    probe = Probe(tuple(rows), tuple(other_rows), tuple(places), tuple(zip(*shared, strict=True)))  # type: ignore[arg-type]
    if probe.tokens < LEAST_POSITIONS:
        raise CheckpointError(
            f"the tokens of {names[0]} and {names[1]} end together at {probe.tokens:,} places of the probe text; "
            f"a comparison needs {LEAST_POSITIONS:,}; name models with related tokenizers"
        )
    return probe


def _ends(row: Row, texts: TokenTexts) -> dict[tuple[bool, int], int]:
    """Return the positions of a row by the bytes read so far; blanks in front, which tokenizers add, are left out."""
    found, done = {}, 0
    for place, token in enumerate(row):
        special, text = texts.get(token, (False, b""))
        if not special:
            done += len(text if done else text.lstrip())
        found[special, done] = place
    return found

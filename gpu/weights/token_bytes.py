"""The bytes that each token of a tokenizer stands for, as grammars need them.

A tokenizer.json is read whose tokens are strings of bytes (byte-level BPE), or texts with a mark for blanks and tokens for
single bytes (SentencePiece). Others have no such table, as their texts depend on the tokens around them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..regular_file import read_regular
from .checkpoint_files import LONGEST_TEXT

MARK = "\u2581"  # stands for a blank


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """``tokens``: by id, the bytes; empty for an id without text. ``digest``: of the file's content."""

    tokens: list[bytes]
    digest: bytes


def token_bytes(file: Path) -> TokenBytes:
    """Read the table from a tokenizer.json. Raise CheckpointError if it has none."""
    try:
        raw = read_regular(file, LONGEST_TEXT)
        content = json.loads(raw)
        vocabulary = _by_id(content["model"]["vocab"])
        added = [(one["id"], one["content"], one["special"]) for one in content.get("added_tokens") or ()]
        spell = _spelling(content.get("decoder") or {})
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{file} has no readable vocabulary ({error}); save it with transformers") from None
    if spell is None:
        raise CheckpointError(
            f"{file} has a decoder whose tokens stand for no bytes of their own, so answers cannot be constrained; "
            "leave the constraint out, or serve a model with a byte-level or SentencePiece tokenizer"
        )
    tokens = [b""] * (1 + max([*vocabulary, *(id for id, _, _ in added)], default=-1))
    for id, text in vocabulary.items():
        tokens[id] = spell(text)
    for id, text, special in added:
        tokens[id] = b"" if special else spell(text)
    return TokenBytes(tokens, digest_of(raw))


def digest_of(raw: bytes) -> bytes:
    """Return the digest of a tokenizer.json."""
    return hashlib.blake2b(raw, digest_size=16).digest()


def _by_id(vocabulary: Any) -> dict[int, str]:
    if isinstance(vocabulary, dict):
        return {id: token for token, id in vocabulary.items()}
    return {id: entry[0] for id, entry in enumerate(vocabulary)}


def byte_alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _spelling(decoder: dict[str, Any]) -> Any:
    """Return the function from a token to its bytes, by the decoder; None: there is none."""
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps or () if step}
    if kinds == {"ByteLevel"}:
        alphabet = byte_alphabet()

        def bytes_of(token: str) -> bytes:
            codes = [alphabet.get(character, -1) for character in token]
            return token.encode(errors="replace") if -1 in codes else bytes(codes)

        return bytes_of
    marks = [step for step in steps or () if step.get("type") in ("Replace", "Metaspace")]
    if not kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"} or not marks:
        return None
    if any(MARK not in json.dumps(step, ensure_ascii=False) for step in marks):
        return None
    falls_back = "ByteFallback" in kinds

    def text_of(token: str) -> bytes:
        if falls_back and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.replace(MARK, " ").encode(errors="replace")

    return text_of

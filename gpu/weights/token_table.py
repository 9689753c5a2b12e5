"""The digest of a tokenizer's tokens by id: models with equal ones have the same tokens under the same ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..regular_file import read_regular
from .checkpoint_files import TOKENIZER, CheckpointFiles

LONGEST = 1 << 28  # bytes of a tokenizer.json


def token_table(folders: Sequence[str]) -> bytes:
    """Return the digest for the folders of a model, the adapter's first; empty: they have no readable tokenizer."""
    file = CheckpointFiles(*map(Path, folders)).of_tokenizer().find(TOKENIZER)
    try:
        content = json.loads(read_regular(file, LONGEST))
        tokens = {**_by_id(content["model"]["vocab"]), **{one["id"]: one["content"] for one in content["added_tokens"]}}
    except (OSError, CheckpointError, ValueError, KeyError, TypeError):
        return b""
    return hashlib.blake2b(json.dumps(sorted(tokens.items())).encode(), digest_size=16).digest()


def same_tokens(one: bytes, other: bytes) -> bool:
    """Return whether two digests are of equal tables. A model without a readable tokenizer takes any ids as its own."""
    return one == other or not one or not other


def _by_id(vocabulary: Any) -> dict[int, str]:
    """Return the tokens of a vocabulary, which is a table of ids, or a list of tokens with scores."""
    if isinstance(vocabulary, dict):
        return {id: token for token, id in vocabulary.items()}
    return {id: entry[0] for id, entry in enumerate(vocabulary)}

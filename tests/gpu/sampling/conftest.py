"""A small vocabulary for grammars."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.gpu.weights.token_bytes import token_bytes
from blockwright.policies.plan.grammar import TokenVocabulary
from blockwright.tests.checkpoints import write_tokenizer

V = 300  # more than the tokenizer has
END = 2


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> TokenVocabulary:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    file = folder / "tokenizer.json"
    return TokenVocabulary(file=str(file), digest=token_bytes(file).digest, size=V, ends=[END])


@pytest.fixture(scope="module")
def tokens(vocabulary: TokenVocabulary) -> list[bytes]:
    found = token_bytes(Path(vocabulary.file)).tokens
    return found + [b""] * (V - len(found))

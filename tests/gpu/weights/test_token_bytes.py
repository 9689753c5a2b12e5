"""Tokens as bytes: the table is what the gateway shows of each token, and a tokenizer without one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.text.tokenizer import TextCodec
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.token_bytes import token_bytes
from blockwright.tests.checkpoints import write_tokenizer

LLAMA2 = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def write(folder: Path, decoder: Any, vocabulary: Any, added: Any = ()) -> Path:
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}
    file = folder / "tokenizer.json"
    added = [{"id": id, "content": text, "special": special, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for id, text, special in added]  # fmt: skip
    file.write_text(json.dumps({"version": "1.0", "model": model, "decoder": decoder, "added_tokens": added}))
    return file


def test_byte_level(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    codec, table = TextCodec.load(CheckpointFiles(tmp_path)), token_bytes(tmp_path / "tokenizer.json")
    assert len(table.tokens) == codec.size
    for id, text in enumerate(table.tokens):
        assert text == (b"" if id in codec.special else codec.token_bytes(id))
    assert {bytes([i]) for i in range(256)} <= {*table.tokens}


def test_sentencepiece(tmp_path: Path) -> None:
    vocabulary = {"<s>": 0, "<0x0A>": 1, "\u2581a": 2, "b": 3, "<0xZZ>": 4, "\u00e9": 5}
    table = token_bytes(write(tmp_path, LLAMA2, vocabulary, [(0, "<s>", True), (6, "<tool>", False)]))
    assert table.tokens == [b"", b"\n", b" a", b"b", b"<0xZZ>", "\u00e9".encode(), b"<tool>"]


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "BPEDecoder"}])
def test_a_tokenizer_without_a_table_is_refused(tmp_path: Path, decoder: Any) -> None:
    with pytest.raises(CheckpointError, match="stand for no bytes of their own"):
        token_bytes(write(tmp_path, decoder, {"a": 0}))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no readable vocabulary"):
        token_bytes(tmp_path / "tokenizer.json")

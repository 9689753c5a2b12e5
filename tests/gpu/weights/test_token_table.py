"""Tables of tokens: equal for equal tokens under equal ids, whatever else a tokenizer has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blockwright.gpu.weights.token_table import same_tokens, token_table


def table(folder: Path, vocabulary: Any, added: dict[int, str], **more: Any) -> bytes:
    folder.mkdir()
    tokens = [{"id": id, "content": token} for id, token in added.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens, **more}))
    return token_table([str(folder)])


def test_tokens_count_and_nothing_else(tmp_path: Path) -> None:
    own = table(tmp_path / "a", {"x": 0, "y": 1}, {2: "</s>"})
    assert own == table(tmp_path / "b", {"y": 1, "x": 0}, {2: "</s>"}, normalizer={"type": "NFC"})
    assert own == table(tmp_path / "c", [["x", -1.0], ["y", -2.0]], {2: "</s>"}), "a list, as of a unigram model"
    others = [
        table(tmp_path / "d", {"x": 1, "y": 0}, {2: "</s>"}),
        table(tmp_path / "e", {"x": 0, "y": 1}, {2: "<end>"}),
        table(tmp_path / "f", {"x": 0, "y": 1}, {}),
    ]
    assert own not in others
    assert not any(same_tokens(own, other) for other in others)
    assert same_tokens(own, own)


def test_a_model_without_a_readable_tokenizer_takes_any_ids(tmp_path: Path) -> None:
    assert token_table([str(tmp_path)]) == b""
    (tmp_path / "tokenizer.json").write_text("[]")
    assert token_table([str(tmp_path)]) == b""
    assert same_tokens(b"", b"x")


def test_an_adapters_own_tokenizer_comes_first(tmp_path: Path) -> None:
    own = table(tmp_path / "adapter", {"x": 0}, {})
    table(tmp_path / "base", {"z": 0}, {})
    assert token_table([str(tmp_path / "adapter"), str(tmp_path / "base")]) == own

"""Which parts of tokenizers are known to be quick."""

from __future__ import annotations

import pytest

from blockwright.api.text.tokenizer import is_quick

QUICK = [
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[(*+){}]+",
]
SLOW = ["(a+)+$", "(a|aa)*", "(?:a*){2,}b", r"\s*\s*\s*x", "a{1,}a{1,}a{1,}b"]


@pytest.mark.parametrize("expression", [*QUICK, *SLOW])
def test_expressions(expression: str) -> None:
    part = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": expression}}]}
    assert is_quick(part) is (expression in QUICK)


def test_growth() -> None:
    assert is_quick({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    assert not is_quick([{"type": "Replace", "pattern": {"String": " "}, "content": "b" * 100}])

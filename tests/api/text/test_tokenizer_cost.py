"""Which parts of tokenizers are known to be quick."""

from __future__ import annotations

import pytest

from blockwright.api.text.tokenizer_cost import is_quick

QUICK = [
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[(*+){}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{Han}+|[^\s]+?\*++",
    " {2,}|(?<=x)y{0,1}",
]
SLOW = [
    *("a**", "a+*b", "a{2,}{2,}$", "a{1,9}+", "a+?+", "a{,3}{3}", "a?" * 30 + "a" * 30, "a{0,90}a{0,90}a{0,90}b"),
    *("(?:x*|y)z*w*", r"(a*)\1\1b", r"(?<n>a|b\g<n>c)", "(?~ab)", "[a-z" + "a" * 5000 + "]", "a{3,1}"),
    "(a+)+$",
    "(a|aa)*",
    "(?:a*){2,}b",
    r"\s*\s*\s*x",
    "a{1,}a{1,}a{1,}b",
]


@pytest.mark.parametrize("expression", [*QUICK, *SLOW])
def test_expressions(expression: str) -> None:
    part = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": expression}}]}
    assert is_quick(part) is (expression in QUICK)


def test_growth() -> None:
    assert is_quick({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    assert not is_quick([{"type": "Replace", "pattern": {"String": " "}, "content": "b" * 100}])

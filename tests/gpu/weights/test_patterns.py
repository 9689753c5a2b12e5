"""Regular expressions of adapters: the same answers as ``re``, in bounded time."""

from __future__ import annotations

import re

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.patterns import matches

NAMES = [
    *(f"model.layers.{i}.{module}" for i in (0, 1, 10, 12) for module in ("self_attn.q_proj", "mlp.up_proj")),
    "lm_head", "", "a", "aa", "aab", "b",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(1|2)\..*(k_proj|q_proj|gate_proj)", r".*q_proj", r"model\.layers\.(0|1[0-2])\..*", r".*[^k]_proj",
        r"(?:.*\.)?lm_head", r"(?!.*mlp).*proj$", r"(?=.*mlp)model.*", r"^model.*\d+\.\w+.*$", "a*", "(a|aa)*b?", "a{2}b",
        "a{1,2}", "[a-c]+", r".*\.\d{2}\..*", "(a*)*b", "a+?b", "", "x?", "(a|b)", r"[^\d]*", "a{0,3}?b", "(ab?){2,}",
        r".*\bq_proj", r".*\B_proj", r"\b", r"a\Ba+", r"a\b|\Baa\b",
        r"(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp|self_attn)\.(?:q_proj))",
    ],
)  # fmt: skip
def test_it_matches_what_re_matches(pattern: str) -> None:
    for name in NAMES:
        assert matches("file", pattern, name) == bool(re.fullmatch(pattern, name)), name
        anywhere = re.fullmatch(rf"(.*\.)?({pattern})", name)
        assert matches("file", pattern, name, anywhere=True) == bool(anywhere), name


@pytest.mark.parametrize(
    "pattern", ["(a|a)*b", "((a*)*)*b", ".*.*.*.*.*.*.*.*.*.*.*.*x", "(.*){1,60}x", "(a?){99}" + "a" * 99]
)
def test_what_takes_re_for_ever_ends(pattern: str) -> None:
    """Ages with ``re``; nobody would see the end of this test."""
    assert not matches("file", pattern, "a" * 90)


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(", "is not a supported regular expression .*unterminated"),
        ("a{99999999999999999999}", "the repetition number is too large"),
        ("a" * 600, "it has 600 characters, 512 are the most"),
        ("(?i)a", "flags are not"),
        (r"(a)\1", "groupref is not"),
        ("(?<=a)b", "assert is not"),
        ("(" * 250 + ")" * 250, "nested too deeply"),
    ],
)
def test_what_is_not_supported_is_said(pattern: str, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=f"file: .*{sentence}.*list the modules by name"):
        matches("file", pattern, "aaa")


@pytest.mark.parametrize("name", ["q", "a.q", "aq", "a.b.q", "a.bxq", "bxq", "xa.b.q", "a.b.q.c", ""])
@pytest.mark.parametrize("pattern", ["q", "b.q", "a.b.q", ".q", "q.", "..", "a.b.q.c"])
def test_names_match_as_expressions_do(pattern: str, name: str) -> None:
    assert matches("f", pattern, name, anywhere=True) is (re.fullmatch(rf"(.*\.)?({pattern})", name) is not None)

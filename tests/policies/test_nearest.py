"""What a person may have meant."""

from __future__ import annotations

import pytest

from blockwright.policies.nearest import nearest, suggestion

KNOWN = ["Qwen/Qwen3-0.6B", "tiny", "serve"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("TINY", "tiny"), ("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B"), ("serv", "serve"), ("", ""), ("x" * 100_000, "")],
)
def test_the_nearest_one_whatever_its_letters(name: str, meant: str) -> None:
    assert nearest(name, KNOWN) == meant
    assert nearest(name, []) == ""


def test_what_is_said_of_a_name() -> None:
    assert suggestion("TINY", KNOWN) == "did you mean tiny?"
    assert suggestion("TINY", KNOWN, repr) == "did you mean 'tiny'?"
    assert suggestion("no", KNOWN, repr) == "there are: Qwen/Qwen3-0.6B, tiny, serve"

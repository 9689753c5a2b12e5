"""Which whole model an adapter is read over when nobody has named one."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.application_life import default_base

WHOLES = [("first", "/models/llama"), ("org/tuned", "/models/tuned-2"), ("third", "acme/gemma")]


@pytest.mark.parametrize(
    ("trained_on", "base"),
    [
        ("", "/models/llama"),
        ("llama", "/models/llama"),
        ("tuned", "/models/tuned-2"),
        ("tuned-2", "/models/tuned-2"),
        ("gemma", "acme/gemma"),
        ("models", "/models/llama"),
        ("elsewhere", "/models/llama"),
    ],
)
def test_that_which_is_called_as_what_it_was_trained_on_else_the_first(trained_on: str, base: str) -> None:
    assert default_base(trained_on, WHOLES) == base


def test_without_a_whole_model_there_is_none() -> None:
    assert default_base("llama", []) == ""

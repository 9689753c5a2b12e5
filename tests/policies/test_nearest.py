"""What a person may have meant."""

from __future__ import annotations

import pytest

from blockwright.policies.nearest import edits, nearest, suggestion
from blockwright.tests.claims import claim

KNOWN = ["Qwen/Qwen3-0.6B", "tiny", "serve"]


@claim("A misspelt command, flag, setting or model is answered with its closest match", of="command-line")
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


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("", "abc", 3),
        ("stop", "stpo", 1),
        ("temprature", "temperature", 1),
        ("lora3", "lora03", 1),
        ("a", "b", 1),
        ("", "", 0),
    ],
)
def test_edits_are_counted(one: str, other: str, count: int) -> None:
    assert edits(one, other) == edits(other, one) == count


def test_of_likely_names_the_one_with_the_fewest_edits() -> None:
    adapters = [f"lora{n:02}" for n in range(22)]
    assert nearest("lora3", adapters) == "lora03"
    assert nearest("lora3", [f"lora{n:02}" for n in range(40)]) == "lora03"
    assert nearest("lora-13", adapters) == "lora13"
    assert nearest("workerz", ["workers", "worker_wait"]) == "workers"

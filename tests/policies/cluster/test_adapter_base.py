"""Which whole model an adapter is read over when no setting or request has named one: never one of several by chance."""

from __future__ import annotations

import re

import pytest

from blockwright.policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base, named_base, shown_base
from blockwright.tests.claims import claim

BASE = WholeModel("base", "/models/llama")
TUNED = WholeModel("org/tuned", "/models/tuned-2")
HUB = WholeModel("third", "acme/gemma@main")
WHOLES = [BASE, TUNED, HUB]


@claim("The base of an adapter is the model that it names and is never guessed", of="fine-tunes")
@pytest.mark.parametrize(
    ("trained_on", "base"),
    [
        ("base", BASE),
        ("/home/ann/base/", BASE),
        ("/models/llama", BASE),
        ("meta/llama", BASE),
        ("org/tuned", TUNED),
        ("someone/tuned", TUNED),
        ("tuned-2", TUNED),
        ("acme/gemma", HUB),
        ("gemma", HUB),
        ("/home/ann/.cache/huggingface/hub/models--acme--gemma/snapshots/0123abc", HUB),
    ],
)
def test_the_one_that_is_named_by_id_path_or_last_name(trained_on: str, base: WholeModel) -> None:
    assert choose_base(trained_on, WHOLES) == base
    assert choose_base(trained_on, reversed(WHOLES)) == base, "in whatever order they are served"


@claim("The base of an adapter is the model that it names and is never guessed", of="fine-tunes")
@pytest.mark.parametrize(
    ("trained_on", "says"), [("", "names none"), ("/x/other", "names '/x/other', which is none of them")]
)
def test_without_a_name_that_matches_several_are_refused_by_name(trained_on: str, says: str) -> None:
    with pytest.raises(AmbiguousBase, match=rf"3 models may be its base \(base, org/tuned, third\).* {re.escape(says)}$"):
        choose_base(trained_on, WHOLES)


@pytest.mark.parametrize("trained_on", ["", "/x/other", "base"])
def test_the_only_one_needs_no_name(trained_on: str) -> None:
    assert choose_base(trained_on, [BASE]) == BASE
    assert choose_base(trained_on, [BASE, WholeModel("copy", BASE.checkpoint)]) == BASE, "two ids of one folder"
    assert choose_base(trained_on, []) is None


def test_a_name_that_fits_several_equally_well_is_refused() -> None:
    twice = [WholeModel("a", "/x/llama"), WholeModel("b", "/y/llama")]
    with pytest.raises(AmbiguousBase, match=r"2 models may be its base 'meta/llama' \(a \(/x/llama\), b \(/y/llama\)\)"):
        choose_base("meta/llama", twice)
    assert choose_base("/y/llama", twice) == twice[1], "a path comes before a last name"
    assert choose_base("a", [*twice, WholeModel("c", "/z/a")]) == twice[0], "an id before both"


def test_a_removed_model_that_adapters_hold_is_one_of_several() -> None:
    """The trial that found the fault: base was removed, and its next adapter was put on the fine-tune that was left."""
    removed, left = WholeModel("base", "/models/base", served=False), WholeModel("full0", "/models/full0")
    with pytest.raises(AmbiguousBase, match=r"\(full0, base \(/models/base, removed, but adapters of it are served\)\)"):
        choose_base("", [left, removed])
    assert choose_base("base", [left, removed]) == removed
    again = WholeModel("base", "/models/base-2")
    assert choose_base("base", [again, removed]) == again, "what is served under the id comes first"
    assert named_base("base", [removed, again]) == again
    assert named_base("base", [left, removed]) == removed
    assert named_base("other", [left, removed]) is None


def test_what_is_shown_is_what_it_was_put_on() -> None:
    """Not what has the id by now."""
    assert shown_base("base", "/models/base", WholeModel("base", "/models/base")) == "base"
    assert shown_base("base", "/models/base", None) == "base"
    assert shown_base("base", "/models/base", WholeModel("base", "/models/v2")) == "/models/base"
    assert shown_base("base", "", WholeModel("base", "/models/v2")) == "base", "of a zoo the name is all that is known"

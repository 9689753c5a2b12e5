"""The choice of drafts: the request before the setting, a prediction without either, and wrong values by name."""

from __future__ import annotations

import pytest

from blockwright.policies.drafts.choice import draft_options, settings_fault
from blockwright.policies.drafts.options import DraftOptions

MODES = {"a": "prompt", "b": "off", "*": "auto"}


@pytest.mark.parametrize(
    ("model", "asked", "prediction", "chosen"),
    [
        ("a", None, [], DraftOptions(prompt=True, tokens=3)),
        ("b", None, [], None),
        ("c", None, [], DraftOptions(prompt=True, tokens=3)),
        ("b:4", None, [], None),  # a tier of b
        ("d:4", None, [], DraftOptions(prompt=True, tokens=3)),
        ("a", "off", [5, 6], None),
        ("b", "auto", [], DraftOptions(prompt=True, tokens=3)),
        ("b", None, [5, 6], DraftOptions(prompt=False, tokens=3, prediction=[5, 6])),
        ("a", None, [5, 6], DraftOptions(prompt=True, tokens=3, prediction=[5, 6])),
    ],
)
def test_the_request_comes_before_the_setting(
    model: str, asked: str | None, prediction: list[int], chosen: DraftOptions | None
) -> None:
    assert draft_options(MODES, model, asked, 3, prediction) == chosen


def test_without_a_setting_there_are_none() -> None:
    assert draft_options({}, "a", None, 0, []) is None
    assert draft_options({}, "a", "prompt", 0, []) == DraftOptions(prompt=True)


@pytest.mark.parametrize(
    ("modes", "tokens", "says"),
    [
        ({"b": "auto"}, 0, "drafts.b names no application; there are: a"),
        ({"a": "tier:4"}, 0, "drafts.a is 'tier:4', but drafts by a tier or by another model are not built yet; "
                             "give off, prompt or auto"),
        ({"*": "on"}, 0, "drafts.* is 'on', but drafts by a tier or by another model are not built yet; "
                         "give off, prompt or auto"),
        ({"a": ""}, 0, "drafts.a is '', which is not a source of drafts; give off, prompt or auto"),
        ({"a": "Auto"}, 0, "drafts.a is 'Auto', which is not a source of drafts; give off, prompt or auto"),
        ({}, 17, "draft_tokens is 17; give 0 (chosen as it pays) to 16"),
        ({}, -1, "draft_tokens is -1; give 0 (chosen as it pays) to 16"),
        ({"b:4": "auto"}, 0, "drafts.b:4 names no application; there are: a"),
        ({"a": "auto", "*": "off"}, 16, ""),
        ({"a:4": "auto"}, 0, ""),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(modes: dict[str, str], tokens: int, says: str) -> None:
    assert settings_fault(modes, tokens, ["a"]) == says


def test_the_entry_of_a_tier_comes_before_the_entry_of_its_family() -> None:
    modes = {"a": "off", "a:4": "prompt"}
    assert draft_options(modes, "a:4", None, 0, []) == DraftOptions(prompt=True)
    assert draft_options(modes, "a:8", None, 0, []) is None
    assert draft_options(modes, "a", None, 0, []) is None


def test_models_that_may_come_can_be_named_before() -> None:
    assert settings_fault({"b": "auto"}, 0, None) == ""

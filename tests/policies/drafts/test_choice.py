"""The choice of drafts: the request before the setting, a prediction without either, and wrong values by name."""

from __future__ import annotations

import pytest

from blockwright.policies.drafts.choice import draft_options, exits_below, exits_fault, settings_fault
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
        ({"*": "on"}, 0, "drafts.* is 'on', but drafts by another model are not built yet; "
                         "give off, prompt, tier:LAYERS or auto"),
        ({"a": ""}, 0, "drafts.a is '', which is not a source of drafts; give off, prompt, tier:LAYERS or auto"),
        ({"a": "Auto"}, 0, "drafts.a is 'Auto', which is not a source of drafts; give off, prompt, tier:LAYERS or auto"),
        ({"a": "tier"}, 0, "drafts.a is 'tier', which is not a source of drafts; give off, prompt, tier:LAYERS or auto"),
        ({"a": "tier:0"}, 0, "drafts.a is 'tier:0', which is not a source of drafts; give off, prompt, tier:LAYERS or auto"),
        ({"a": "tier:4", "*": "tier:12"}, 0, ""),
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


MODELS = {
    "m": "",
    "m:2": "m",
    "m:10": "m",
    "m:4": "m",
    "m:auto": "m",
    "other": "",
    "other:3": "other",
    "lora": "",
    "low": "",
}


def test_the_exits_that_a_model_passes() -> None:
    assert exits_below("m", "", MODELS) == ["m:2", "m:4", "m:10"]
    assert exits_below("m:4", "", MODELS) == ["m:2"]
    assert exits_below("m:2", "", MODELS) == exits_below("lora", "none", MODELS) == []
    assert exits_below("lora", "m", MODELS) == exits_below("m", "", MODELS)
    assert exits_below("low", "m:10", MODELS) == ["m:2", "m:4"]


@pytest.mark.parametrize(
    ("modes", "model", "asked", "chosen"),
    [
        ({}, "m", "tier:4", DraftOptions(tiers=["m:4"])),
        ({"m": "tier:4"}, "m", None, DraftOptions(tiers=["m:4"])),
        ({"m": "auto"}, "m", None, DraftOptions(True, tiers=["m:2", "m:4", "m:10"])),
        ({"m": "auto"}, "m:4", None, DraftOptions(True, tiers=["m:2"])),
        ({"m": "tier:4"}, "m:4", None, None),  # it does not draft for itself
        ({"m": "tier:4"}, "m:2", None, None),
        ({"*": "tier:3"}, "m", None, DraftOptions(tiers=["m:3"])),  # explain says that it is not there
    ],
)
def test_tiers_that_draft(modes: dict[str, str], model: str, asked: str | None, chosen: DraftOptions | None) -> None:
    assert draft_options(modes, model, asked, 0, [], exits_below(model, "", MODELS)) == chosen


@pytest.mark.parametrize(
    ("modes", "says"),
    [
        ({"m": "tier:3"}, "drafts.m is 'tier:3', but m passes no exit after 3 layers; "
                          "give off, prompt or auto, or one of tier:2, tier:4, tier:10"),
        ({"m:4": "tier:4"}, "drafts.m:4 is 'tier:4', but m:4 passes no exit after 4 layers; "
                            "give off, prompt or auto, or one of tier:2"),
        ({"m:2": "tier:2"}, "drafts.m:2 is 'tier:2', but m:2 passes no exit after 2 layers; give off, prompt or auto"),
        ({"lora": "tier:4", "low": "tier:10"}, "drafts.low is 'tier:10', but low passes no exit after 10 layers; "
                                               "give off, prompt or auto, or one of tier:2, tier:4"),
        ({"m": "tier:10", "m:10": "tier:4", "*": "tier:3", "comes": "tier:7"}, ""),
    ],
)  # fmt: skip
def test_a_tier_that_a_model_does_not_pass_is_named(modes: dict[str, str], says: str) -> None:
    assert exits_fault(modes, {"lora": "m", "low": "m:10"}, MODELS) == says

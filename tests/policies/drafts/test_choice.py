"""The choice of drafts: the request before the setting, a prediction without either, and wrong values by name."""

from __future__ import annotations

import pytest

from blockwright.policies.drafts.choice import draft_options, exits_below, exits_fault, models_fault, settings_fault
from blockwright.policies.drafts.draft_model import FORM, DraftParty
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
    ("modes", "says"),
    [
        ({"b": "auto"}, "drafts.b names no application; there are: a, small"),
        ({"*": "on"}, "drafts.* is 'on', which is neither a source of drafts nor a model that is served; "
                         "give off, prompt, tier:LAYERS, auto or the id of another model (there are: a, small)"),
        ({"a": "small", "*": "small:4"}, ""),
        ({"a": ""}, f"drafts.a is '', which is not a source of drafts; {FORM}"),
        ({"a": "Auto"}, f"drafts.a is 'Auto', which is not a source of drafts; {FORM}"),
        ({"a": "tier"}, f"drafts.a is 'tier', which is not a source of drafts; {FORM}"),
        ({"a": "tier:0"}, f"drafts.a is 'tier:0', which is not a source of drafts; {FORM}"),
        ({"a": "tier:4", "*": "tier:12"}, ""),
        ({"b:4": "auto"}, "drafts.b:4 names no application; there are: a, small"),
        ({"a": "auto", "*": "off"}, ""),
        ({"a:4": "auto"}, ""),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(modes: dict[str, str], says: str) -> None:
    assert settings_fault(modes, ["a", "small"]) == says


def test_the_entry_of_a_tier_comes_before_the_entry_of_its_family() -> None:
    modes = {"a": "off", "a:4": "prompt"}
    assert draft_options(modes, "a:4", None, 0, []) == DraftOptions(prompt=True)
    assert draft_options(modes, "a:8", None, 0, []) is None
    assert draft_options(modes, "a", None, 0, []) is None


def test_models_that_may_come_can_be_named_before() -> None:
    assert settings_fault({"b": "auto"}, None) == ""


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


PARTIES = {
    "m": DraftParty("m", "m", 300),
    "m:4": DraftParty("m:4", "m", 300),
    "lora": DraftParty("lora", "m", 300),
    "small": DraftParty("small", "small", 300),
    "odd": DraftParty("odd", "odd", 300),
    "wide": DraftParty("wide", "wide", 320),
    "soft": DraftParty("soft", "small", 300, virtual=7),
    "m:auto": DraftParty("m:auto", "m", 0, chooses=True),
}
SMALLER = "give a smaller model of the same vocabulary"


@pytest.mark.parametrize(
    ("model", "draft", "says"),
    [
        ("m", "small", ""),
        ("lora", "small", ""),
        ("small", "m:4", ""),  # a tier of another family
        ("m", "m", f"but m would draft for itself; {SMALLER}"),
        ("m", "m:4", "but m:4 is a lower tier of m; give tier:4, which takes no memory of its own"),
        ("m", "lora", "but lora and m have the same parameters, so that drafts would take as long as the answer; "
                      + SMALLER),
        ("lora", "m", "but m and lora have the same parameters, so that drafts would take as long as the answer; "
                      + SMALLER),
        ("m:4", "m", "but m and m:4 have the same parameters, so that drafts would take as long as the answer; "
                     + SMALLER),
        ("m", "m:auto", "but m:auto chooses among tiers and is no model; name one of them"),
        ("m", "soft", "but soft has 7 virtual tokens before every prompt, which m does not know; give off, prompt or auto"),
        ("soft", "m", "but soft has 7 virtual tokens before every prompt, which m does not know; give off, prompt or auto"),
        ("m", "wide", "but wide has a vocabulary of 320 tokens and m one of 300; give a model of the same vocabulary"),
        ("m", "odd", "but the tokenizers of odd and m have different tokens; give a model with the same tokenizer"),
        ("m", "gone", "which is neither a source of drafts nor a model that is served; " + FORM
                      + " (there are: lora, m, m:4, odd, small, soft, wide)"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_draft_is_named(model: str, draft: str, says: str) -> None:
    def fault(more: bool) -> str:
        alike = lambda one, other: "odd" not in (one, other)  # noqa: E731
        return models_fault({model: draft}, PARTIES, lambda name: ["m:4"] * (name == "m"), alike, more=more)

    assert fault(False) == (says and f"drafts.{model} is {draft!r}, {says}")
    assert fault(True) == ("" if draft == "gone" else fault(False)), "it may come"


def test_the_whole_model_behind_an_adapter_and_a_tier() -> None:
    bases, families = {"lora": "m:4"}, {"m:4": "m"}
    assert [DraftParty.of(id, bases, families, 9, 0).whole for id in ("m", "m:4", "lora", "x")] == ["m", "m", "m", "x"]


def test_a_request_names_a_model_or_the_setting_does() -> None:
    chosen = DraftOptions(tokens=2, model="small")
    assert draft_options({}, "a", "small", 2, []) == draft_options({"a": "small"}, "a", None, 2, []) == chosen
    assert chosen.drafter == "small"
    refused = draft_options({"*": "small"}, "small", None, 2, [], reason="small would draft for itself")
    assert refused == DraftOptions(tokens=2, model="small", reason="small would draft for itself")
    assert refused is not None
    assert (refused.any, refused.drafter) == (False, "")

"""The tier that a request asks for, and the rule by which ``NAME:auto`` goes up."""

from __future__ import annotations

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.model.tier_choice import asked_model, auto_id, family_of_auto, starting_tier, threshold_of
from blockwright.policies.model.tiers import layers_of

FAMILIES = {"a": ["a:4", "a:8"], "b:c": ["b:c:2"]}


def test_ids() -> None:
    assert [family_of_auto(model) for model in ("a:auto", "b:c:auto", "a:4", "auto", ":auto", "a:AUTO")] == [
        "a", "b:c", "", "", "", "",
    ]  # fmt: skip
    assert family_of_auto(auto_id("x:y")) == "x:y"
    assert [layers_of(model) for model in ("a:4", "a:12", "a", "a:auto", "a:0")] == [4, 12, 0, 0, 0]


@pytest.mark.parametrize(
    ("model", "quality", "wanted"),
    [
        ("a", "low", "a:4"), ("a", "high", "a"), ("a", "auto", "a:auto"),
        ("a:auto", "low", "a:4"), ("a:auto", "high", "a"), ("a:auto", "auto", "a:auto"),
        ("a:4", "low", "a:4"), ("b:c", "low", "b:c:2"), ("b:c:2", "low", "b:c:2"),
    ],
)  # fmt: skip
def test_quality_stands_for_a_model(model: str, quality: str, wanted: str) -> None:
    assert asked_model(model, quality, FAMILIES) == (wanted, "")


@pytest.mark.parametrize(
    ("model", "quality", "says"),
    [
        ("a:4", "high", "quality is 'high', but the model is the tier a:4; name a, or leave quality out"),
        ("a:4", "auto", "quality is 'auto', but the model is the tier a:4"),
        ("a:8", "low", "quality is 'low', but the model is the tier a:8"),
        ("d", "low", "quality is 'low', but d has no tiers; leave quality out"),
        ("d:auto", "auto", "quality is 'auto', but d:auto has no tiers"),
    ],
)
def test_quality_without_a_meaning_is_refused(model: str, quality: str, says: str) -> None:
    assert says in asked_model(model, quality, FAMILIES)[1]


def test_the_stored_rule_says_where_to_start_and_the_setting_comes_first() -> None:
    stored = Threshold(theta=0.7, measure="margin", tokens=8)
    assert starting_tier(["a:4", "a:8"], {}) == "a:4"
    assert starting_tier(["a:4", "a:8"], {"a:8": stored}) == "a:8"
    assert threshold_of("a", stored, {"b": 0.1}, "least", 4) == stored
    assert threshold_of("a", stored, {"a": 0.1, "*": 0.2}, "least", 4) == Threshold(theta=0.1, measure="least", tokens=4)
    assert threshold_of("a", stored, {"*": 0.2}, "mean", 16).theta == 0.2
    assert threshold_of("a", None, {}, "mean", 16) == Threshold(theta=0.9)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"auto_measure": "median"}, "auto_measure is 'median'; choose one of mean, least, margin, entropy"),
        ({"auto_tokens": 0}, "auto_tokens is 0; give 1 to 256"),
        ({"auto_tokens": 257}, "auto_tokens is 257; give 1 to 256"),
        ({"theta": {"a": -0.1}}, r"theta.a is -0.1; give 0 \(never up\) to 1"),
        ({"theta": {"a": 2.5}}, "theta.a is 2.5; give 0"),
        ({"theta": {"b": 0.5}}, "theta.b names no application; there are: a"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(applications={"a": "/a"}, **values)
    assert Settings(applications={"a": "/a"}, theta={"*": 2.0, "a": 0.5}).tiering.theta["a"] == 0.5
    assert Settings(applications={"a": "/a"}, adapters="/x", theta={"b": 0.5})
    keys = {"api_keys": {"k": "t"}, "tenant_models": {"t": "a:auto"}}
    assert Settings(applications={"a": "/a"}, **keys).tenants.tenant_models == {"t": "a:auto"}  # type: ignore[arg-type]

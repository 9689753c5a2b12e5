"""Names of tiers and of their sources."""

from __future__ import annotations

from blockwright.policies.model.tiers import family_of, folder_and_layers, no_tier, tier_id, tier_source


def test_the_source_of_a_tier_names_its_folder_and_layers() -> None:
    assert folder_and_layers(tier_source("/m/tiers", 4)) == ("/m/tiers", 4)
    assert tier_source("/m/tiers", 0) == "/m/tiers"
    for other in ("/m/tiers", "/m/tiers:4", "/m/exits.json", "/m/exits.json:0", "owner/name", "/exits.json:4/x"):
        assert folder_and_layers(other) == (other, 0)


def test_an_id_tells_the_family() -> None:
    assert tier_id("a:b", 12) == "a:b:12"
    assert [family_of(one) for one in ("m:4", "a:b:12", "m", "m:", "m:0", ":4", "m:x")] == ["m", "a:b", "", "", "", "", ""]


def test_a_tier_that_does_not_exist_is_answered_with_those_that_do() -> None:
    there = ["m:2", "m:4", "n:3"]
    assert no_tier("m:5", there) == "m has the tiers m:2, m:4, m (all layers)"
    assert (no_tier("x:5", there), no_tier("m", there), no_tier("mm", there)) == ("", "", "")

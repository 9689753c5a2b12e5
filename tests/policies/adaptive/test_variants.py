"""Variants of a chain: their sources, and which are made of the equivalents that are known."""

from __future__ import annotations

import pytest

from blockwright.policies.adaptive.variants import (
    Equivalent,
    Swap,
    accuracy_ranks,
    folder_and_swaps,
    less_accurate,
    make_variants,
    swapped,
    variant_source,
)

IDS = {name: name.encode().hex().rjust(32, "0") for name in "abcdeABCDE"}
CHAIN = tuple(IDS[name] for name in "abcde")


def equivalent(first: int, names: str, lost: float | None = 0.0, donor: str = "x", kl: float | None = 0.0) -> Equivalent:
    return Equivalent(Swap(first, first + len(names), tuple(IDS[name] for name in names)), donor, lost, kl)


def chains(*equivalents: Equivalent, most: int = 8) -> list[str]:
    letters = {id: name for name, id in IDS.items()}
    made = make_variants(CHAIN, equivalents, most)
    return ["".join(letters[id] for id in swapped(CHAIN, one.swaps)) for one in made]


def test_a_source_names_folder_and_swaps() -> None:
    swaps = (Swap(1, 3, (IDS["B"], IDS["C"])), Swap(4, 5, (IDS["E"],)))
    source = variant_source("/zoo/chains/a,b", swaps)
    assert folder_and_swaps(source) == ("/zoo/chains/a,b", swaps)
    assert variant_source("/zoo", ()) == "/zoo"
    for other in ("/zoo/chains/a", "/zoo/variant:", "/zoo/variant:1-2=xyz", source + ","):
        assert folder_and_swaps(other) == (other, ())


def test_swaps_replace_their_stretch_and_must_lie_apart_within_the_chain() -> None:
    assert swapped(CHAIN, [Swap(1, 4, (IDS["B"],))]) == (IDS["a"], IDS["B"], IDS["e"])
    for wrong in ([Swap(3, 6, (IDS["D"],))], [Swap(1, 3, (IDS["B"],)), Swap(2, 4, (IDS["C"],))], [Swap(2, 2, (IDS["C"],))]):
        with pytest.raises(ValueError, match="cannot be swapped in a chain of 5"):
            swapped(CHAIN, wrong)


def test_all_blocks_of_a_donor_come_first_then_each_alone() -> None:
    assert chains(equivalent(1, "B"), equivalent(3, "D")) == ["aBcDe", "aBcde", "abcDe"]


def test_longer_blocks_are_taken_before_what_they_contain() -> None:
    assert chains(equivalent(1, "B"), equivalent(1, "BC"), equivalent(2, "C")) == ["aBCde", "aBcde", "abCde"]


def test_donors_are_not_mixed() -> None:
    assert chains(equivalent(1, "B"), equivalent(3, "D", donor="y")) == ["aBcde", "abcDe"]


def test_losses_of_a_variant_together_stay_below_the_limit() -> None:
    assert chains(equivalent(1, "B", 0.6), equivalent(3, "D", 0.6)) == ["aBcde", "abcDe"]
    assert chains(equivalent(1, "B", None, kl=0.03), equivalent(3, "D", None, kl=0.03)) == ["aBcde", "abcDe"]
    assert chains(equivalent(1, "B", -0.5), equivalent(3, "D", 0.9), equivalent(4, "E", 0.2))[0] == "aBcdE", (
        "no gain pays a loss"
    )


def test_only_so_many_are_made_and_none_that_is_the_chain_itself() -> None:
    assert chains(*(equivalent(place, name) for place, name in enumerate("ABCDE")), most=2) == ["ABCDE", "Abcde"]
    assert chains(equivalent(1, "b")) == []
    assert chains() == []


def test_blocks_that_only_look_alike_give_one_variant_for_each_donor_in_the_order_of_accuracy() -> None:
    alike = [
        equivalent(1, "B", 9.0, "y"),
        equivalent(1, "BC", 5.0, "y"),
        equivalent(3, "D", 7.0, "y"),
        equivalent(0, "A", 3.0),
    ]
    letters = {id: name for name, id in IDS.items()}
    made = less_accurate(CHAIN, [*alike, equivalent(4, "E", donor="z")], {"y": 2, "x": 1})
    assert [("".join(letters[id] for id in swapped(CHAIN, one.swaps)), one.rank) for one in made] == [
        ("Abcde", 1),
        ("aBCDe", 2),
    ]
    assert less_accurate(CHAIN, alike, {"y": 1, "x": 2}, most=1)[0].donors == ("y",)


def test_ranks_count_from_the_application_itself() -> None:
    assert accuracy_ranks("a", ["a", "b", "c"]) == {"b": 1, "c": 2}
    assert accuracy_ranks("b", ["a", "b", "c"]) == {"a": 0, "c": 1}
    assert accuracy_ranks("d", ["a", "b"]) == {"a": 1, "b": 2}

"""Whose a request is: ids, names that clients chose, and who may ask."""

from __future__ import annotations

from blockwright.policies.requests.request_ownership import (
    NAME_LENGTH,
    NAMES,
    ChosenNames,
    may_see,
    request_id,
    sequence_id,
    sequences_of,
)


def test_an_id_names_its_gateway_and_its_choices_are_found_by_it() -> None:
    request = request_id("cmpl", "g1", "abc")
    assert request == "cmpl-g1-abc"
    ids = [sequence_id(request, choice) for choice in range(3)]
    assert ids == ["cmpl-g1-abc", "cmpl-g1-abc/1", "cmpl-g1-abc/2"]
    assert sequences_of(request, [*ids, "cmpl-g1-abcd", "cmpl-g1-abcd/1"]) == ids


def test_a_request_exists_for_the_key_that_made_it_alone() -> None:
    assert may_see("alice", "alice")
    assert may_see("", "")
    assert not may_see("", "alice")
    assert not may_see("bob", "alice")


def test_names_belong_to_a_key_and_the_oldest_are_forgotten() -> None:
    names = ChosenNames()
    names.note("alice", "job", "cmpl-1")
    names.note("bob", "job", "cmpl-2")
    names.note("alice", "job", "cmpl-3")
    names.note("alice", "x" * (NAME_LENGTH + 1), "cmpl-4")
    assert (names.resolve("alice", "job"), names.resolve("bob", "job")) == ("cmpl-3", "cmpl-2")
    assert names.resolve("carol", "job") == "job", "perhaps an id of ours"
    assert names.resolve("alice", "x" * (NAME_LENGTH + 1)) == "x" * (NAME_LENGTH + 1)
    for i in range(NAMES):
        names.note("dave", f"n{i}", f"cmpl-n{i}")
    assert names.resolve("bob", "job") == "job"
    assert names.resolve("dave", "n0") == "cmpl-n0"

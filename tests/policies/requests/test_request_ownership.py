"""Whose a request is: ids, names that clients chose, and who may ask."""

from __future__ import annotations

from blockwright.policies.requests.request_ownership import (
    NAME_LENGTH,
    NAMES,
    ChosenNames,
    Viewer,
    request_id,
    request_of,
    sequence_id,
    sequences_of,
)
from blockwright.tests.claims import claim


def test_an_id_names_its_gateway_and_its_choices_are_found_by_it() -> None:
    request = request_id("cmpl", "g1", "abc")
    assert request == "cmpl-g1-abc"
    ids = [sequence_id(request, choice) for choice in range(3)]
    assert ids == ["cmpl-g1-abc", "cmpl-g1-abc/1", "cmpl-g1-abc/2"]
    assert {request_of(id) for id in ids} == {request}
    assert sequences_of(request, [*ids, "cmpl-g1-abcd", "cmpl-g1-abcd/1"]) == ids


@claim("A request exists only for the key that sent it and for admin keys", of="security")
def test_a_request_exists_for_the_key_that_sent_it_and_for_admin_keys() -> None:
    assert Viewer("alice").may_see("alice")
    assert Viewer().may_see("")
    assert not Viewer().may_see("alice")
    assert not Viewer("bob").may_see("alice")
    assert Viewer("root", everything=True).may_see("alice")


def test_an_admin_key_finds_the_names_that_others_chose() -> None:
    names, root = ChosenNames(), Viewer("root", everything=True)
    names.record("alice", "job", "cmpl-1")
    assert names.resolve(root, "job") == "cmpl-1"
    names.record("bob", "job", "cmpl-2")
    assert names.resolve(root, "job") == "cmpl-2", "the newest"
    names.record("root", "job", "cmpl-3")
    names.record("alice", "job", "cmpl-4")
    assert names.resolve(root, "job") == "cmpl-3", "its own first"
    assert names.resolve(root, "unheard-of") == "unheard-of"


def test_names_belong_to_a_key_and_the_oldest_are_forgotten() -> None:
    names = ChosenNames()
    names.record("alice", "job", "cmpl-1")
    names.record("bob", "job", "cmpl-2")
    names.record("alice", "job", "cmpl-3")
    names.record("alice", "x" * (NAME_LENGTH + 1), "cmpl-4")
    assert (names.resolve(Viewer("alice"), "job"), names.resolve(Viewer("bob"), "job")) == ("cmpl-3", "cmpl-2")
    assert names.resolve(Viewer("carol"), "job") == "job", "perhaps an id of ours"
    assert names.resolve(Viewer("alice"), "x" * (NAME_LENGTH + 1)) == "x" * (NAME_LENGTH + 1)
    for i in range(NAMES):
        names.record("dave", f"n{i}", f"cmpl-n{i}")
    assert names.resolve(Viewer("bob"), "job") == "job"
    assert names.resolve(Viewer("dave"), "n0") == "cmpl-n0"

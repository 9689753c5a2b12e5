from __future__ import annotations

import pytest

from blockwright.policies.cluster.rolling import RunningRelease, numerics_apart, roll_of


def member(name: str, role: str, release: str = "0.6.0", protocol: str = "5-6") -> RunningRelease:
    return RunningRelease(name, role, release, protocol)


def test_the_newest_release_is_the_aim_and_the_head_is_rolled_first():
    roll = roll_of(
        [
            member("w1", "worker"),
            member("g1", "gateway"),
            member("head", "head"),
            member("w0", "worker", "0.7.0", "6-7"),
            member("p", "predictors"),
            member("n", "node"),
        ]
    )
    assert roll.release == "0.7.0"
    assert [one.name for one in roll.left] == ["head", "g1", "n", "w1", "p"]
    assert [one.name for one in roll.members] == ["head", "g1", "n", "w0", "w1", "p"]


def test_nothing_is_left_where_all_are_alike():
    assert roll_of([member("head", "head"), member("w0", "worker")]).left == ()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (("0.6.0", "5-6"), ("0.7.0", "6-7")),
        (("0.7.0", "5-6"), ("0.6.0", "6-7")),  # a protocol counts more than a version
        (("0.9.0", "5-6"), ("0.10.0", "5-6")),
        (("0.6.0.dev0", "5-6"), ("0.6.0", "5-6")),
        (("0.6.0.dev0", "5-6"), ("0.6.0.dev0", "6")),
        (("", ""), ("0.1.0", "5")),
    ],
)
def test_what_is_newer(older, newer):
    for pair in ((older, newer), (newer, older)):
        roll = roll_of([member(str(i), "worker", *one) for i, one in enumerate(pair)])
        assert roll.release == newer[0]
        assert [(one.release, one.protocol) for one in roll.left] == [older]


def test_numerics_are_told_only_where_they_differ():
    assert numerics_apart({"w0": "a", "w1": "a", "w2": ""}) == {}
    assert numerics_apart({"w1": "b", "w2": "a", "w0": "a"}) == {"a": ["w0", "w2"], "b": ["w1"]}
    assert numerics_apart({}) == {}

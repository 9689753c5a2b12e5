"""What ``import blockwright`` offers."""

import pytest

import blockwright


def test_every_name_can_be_had() -> None:
    for name in blockwright.__all__:
        assert getattr(blockwright, name).__name__ == name
    assert set(blockwright.__all__) <= set(dir(blockwright))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Clustre'; it has .*Cluster"):
        blockwright.Clustre  # noqa: B018

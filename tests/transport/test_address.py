import stat

import pytest

from blockwright.transport.address import (
    PeerId,
    check_name,
    ipc_endpoint,
    parse_identity,
    private_directory,
    remove_directory,
)
from blockwright.transport.errors import AddressError


def test_identity_round_trip():
    assert parse_identity(str(PeerId("w0", 17))) == PeerId("w0", 17)


@pytest.mark.parametrize(
    "text", ["", "w0", "w0#", "w0#0", "w0#-1", "#1", "a b#1", "w0#1x", "../x#1", "w" * 65 + "#1", "w0#01"]
)
def test_what_is_no_identity(text):
    with pytest.raises(AddressError):
        parse_identity(text)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "-a", "é", "a\n", "a#1"])
def test_what_is_no_name(name):
    with pytest.raises(AddressError):
        check_name(name)


def test_a_fresh_directory_is_private(tmp_path):
    made = private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_directory_open_to_others_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(AddressError, match="chmod 700"):
        private_directory(tmp_path)


def test_a_long_path_is_refused_with_its_length_limit(tmp_path):
    with pytest.raises(AddressError, match="107 bytes"):
        ipc_endpoint(tmp_path / ("x" * 100), PeerId("w0", 1))


def test_removing_leaves_what_is_not_ours(tmp_path):
    mine, both = tmp_path / "mine", tmp_path / "both"
    for path in (mine, both):
        path.mkdir()
        (path / "w0-1.sock").touch()
    (both / "notes").touch()
    remove_directory(mine)
    remove_directory(both)
    assert not mine.exists()
    assert [p.name for p in both.iterdir()] == ["notes"]

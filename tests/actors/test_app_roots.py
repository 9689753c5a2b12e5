"""Which folders and names may become applications at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.actors.app_roots import check_name, folder_below, missing_roots
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.claims import claim


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("root/app", "root/linked", "outside", "root-of-others"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "outside/model.safetensors").touch()
    (tmp_path / "root/app/config.json").touch()
    (tmp_path / "root/file").touch()
    (tmp_path / "root/away").symlink_to(tmp_path / "outside")
    (tmp_path / "root/near").symlink_to(tmp_path / "root/app")
    (tmp_path / "root/linked/model.safetensors").symlink_to(tmp_path / "outside/model.safetensors")
    return tmp_path / "root"


@claim("Models are added only from folders below the configured roots", of="security")
def test_a_folder_below_a_root_is_found_links_resolved(root: Path) -> None:
    for roots in (str(root), f"/nowhere, {root}", f"{root}/"):
        assert folder_below(roots, f"{root}/app") == folder_below(roots, f"{root}/near") == root / "app"


@claim("Models are added only from folders below the configured roots", of="security")
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{root}/../outside", "is not below a root of app_roots"),
        ("{root}/away", "is not below a root of app_roots"),
        ("{root}-of-others", "is not below a root of app_roots"),
        ("app", "is not below a root of app_roots"),
        ("", "is not below a root of app_roots"),
        ("/etc", "is not below a root of app_roots"),
        ("{root}/linked", "model.safetensors is a link that leaves app_roots"),
        ("{root}/missing", "there is no folder"),
        ("{root}/file", "there is no folder"),
        ("{root}/\0", "cannot be looked up"),
        ("{root}/" + "x" * 5000, "cannot be looked up .File name too long"),
    ],
)
def test_what_leaves_the_roots_is_refused(root: Path, path: str, why: str) -> None:
    with pytest.raises(RequestRefused, match=why) as caught:
        folder_below(str(root), path.format(root=root))
    assert (caught.value.why, caught.value.param) == (Refusal.INVALID, "path")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("ap", "app"),
        ("App", "app"),
        ("apps/", "app"),
        ("deepp/down/leaf", "deep/down/leaf"),
        ("deepp/down/gone", "deep"),  # as far as it is there
        ("deep/dwn/leaf", "deep/down/leaf"),
        ("neaar", "near"),  # a link that stays
        ("awy", ""),  # one that leaves, of which nothing is said
        ("deepp/out/secret", "deep"),
        ("fil", ""),  # no folder
        ("file/app", ""),
        ("zzz", ""),
    ],
)
def test_a_misspelt_folder_below_a_root_is_answered_with_the_nearest_one(root: Path, path: str, meant: str) -> None:
    (root / "deep/down/leaf").mkdir(parents=True)
    (root.parent / "outside/secret").mkdir()
    (root / "deep/out").symlink_to(root.parent / "outside")
    with pytest.raises(RequestRefused) as caught:
        folder_below(str(root), f"{root}/{path}")
    remedy = f"did you mean {root}/{meant}?" if meant else f"name one below {root}"
    assert caught.value.message == f"there is no folder {root}/{path}; {remedy}"


def test_a_root_that_is_missing_itself_names_no_neighbour(root: Path) -> None:
    with pytest.raises(RequestRefused, match=r"there is no folder .*; name one below"):
        folder_below(f"{root.parent}/rooot", f"{root.parent}/rooot/app")


def test_without_roots_nothing_can_be_added(root: Path) -> None:
    with pytest.raises(RequestRefused, match="app_roots is empty; restart it with --set app_roots=FOLDER") as caught:
        folder_below(" , ", f"{root}/app")
    assert caught.value.why is Refusal.FORBIDDEN


@pytest.mark.parametrize("name", ["tuned", "org/model-7b.v2", "a:b@c", "0", "x" * 200])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a b", "../a", "a//b", "-a", "a~2", "x" * 201, "a\n", "é", "a@w0+w1"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(RequestRefused, match="give up to 200 letters") as caught:
        check_name(name)
    assert caught.value.param == "name"


def test_missing_roots_are_reported(root: Path) -> None:
    assert missing_roots(f"{root}, /nowhere/at/all,{root}/file") == [Path("/nowhere/at/all"), root / "file"]
    assert missing_roots("") == []

"""Gateways that join by themselves, over the real runtime in one process: taken in, refused, and given files by hash."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors import member_calls
from blockwright.actors.gateway import fetched_files
from blockwright.actors.gateway.admission import GATEWAY_ADMISSION, GatewayAdmission, name_refusal
from blockwright.actors.gateway.fetched_files import PREFIX, FetchedFiles, FetchError, private_folder
from blockwright.actors.gateway.front_files import FolderListing, FrontFiles
from blockwright.actors.gateway.peers import GatewayConfig
from blockwright.actors.member_calls import JoinRefused, enlist_gateway
from blockwright.actors.members import MEMBERS
from blockwright.actors.settings.settings import Settings
from blockwright.api.http.catalog import load_model
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.runtime import Node
from blockwright.runtime.base.address import NODE_SERVICE
from blockwright.tests.actors.joining_rig import JoiningHead
from blockwright.tests.claims import claim


class Joining(JoiningHead):
    """A head that takes gateways in."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__()
        self.checkpoint, self.certificate = checkpoint, folder / "cert.pem"
        self.certificate.write_text("a certificate")
        self.settings = Settings(
            applications={"m": str(checkpoint)}, tls_cert=str(self.certificate), tls_key=str(self.certificate)
        )
        self.held = {"m": Checkpoint.open(checkpoint)}

    async def admit(self) -> None:
        config = GatewayConfig(self.settings, [], 0, [], ["head"], "")
        admission = GatewayAdmission(self.cluster, config, {"g1"}, FrontFiles(self.settings, self.held))
        await self.cluster.node.spawn(admission, name=GATEWAY_ADMISSION)

    async def node(self, name: str, role: str = "gateway") -> Node:
        return await super().node(name, role)


@pytest.fixture
async def joining(tmp_path: Path, checkpoint: Callable[..., Path]) -> AsyncIterator[Joining]:
    async with Joining(tmp_path, checkpoint()).running() as made:
        yield made


@claim("A gateway that may not join is refused with a sentence, and nothing changes", of="serving")
async def test_who_is_not_taken_in(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, role, said in (
        ("far", "worker", "node far has not joined as a gateway; make a join text with --role gateway"),
        ("g1", "gateway", "the name g1 is one that the head gives to its own processes; choose another --name"),
        ("members", "gateway", "the head has an actor of the name members; choose another --name"),
        ("a.b", "gateway", "the name a.b cannot be a gateway's, whose requests have it in their ids; give letters, digits"),
    ):
        node = await joining.node(name, role)
        with pytest.raises(JoinRefused, match=said):
            await enlist_gateway(node, {})
    node = await joining.node("other")
    with pytest.raises(JoinRefused, match="33 labels are given; give at most 32"):
        await enlist_gateway(node, {str(n): "" for n in range(33)})
    monkeypatch.setattr(member_calls, "RELEASE", "<newest>")
    with pytest.raises(JoinRefused, match="'<newest>' is no version of blockwright; install"):
        await enlist_gateway(node, {})
    assert {actor.name for actor in joining.cluster.node.inspect().actors} == {MEMBERS, GATEWAY_ADMISSION, NODE_SERVICE}
    assert (name_refusal("a-b_c"), name_refusal("a.b")[:8]) == ("", "the name")


async def test_it_gets_settings_and_the_files_that_they_name(joining: Joining, tmp_path: Path) -> None:
    node = await joining.node("far")
    config = await enlist_gateway(node, {})
    assert config.gateway.settings == joining.settings
    assert set(config.files) == {"tls_cert", "tls_key"}
    files = FetchedFiles(node, tmp_path)
    path = await files.setting("tls_cert", config.files["tls_cert"])
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("a certificate", 0o600)
    joining.certificate.write_text("another one")
    assert await files.setting("tls_key", config.files["tls_key"]) == path, "equal files are fetched once"
    path.unlink()
    with pytest.raises(FetchError, match="the file of tls_key changed while it was fetched; start again"):
        await files.setting("tls_key", config.files["tls_key"])


@claim("A gateway's machine needs no checkpoint: tokenizer, template and configuration come by hash", of="serving")
async def test_a_model_is_loaded_from_files_that_were_fetched(joining: Joining, tmp_path: Path) -> None:
    node = await joining.node("far")
    files = FetchedFiles(node, tmp_path / "files")
    (tmp_path / "files").mkdir()
    made = await files.model([str(joining.checkpoint)])
    (folder,) = map(Path, made.folders)
    assert folder.is_relative_to(tmp_path / "files")
    names = os.listdir(folder)
    assert names
    assert not [name for name in names if name.endswith(".safetensors")]
    far, near = load_model(CheckpointFiles(folder), None, made), load_model(CheckpointFiles(joining.checkpoint))
    assert (far.defaults, far.generation, far.stop_tokens) == (near.defaults, near.generation, near.stop_tokens)
    assert far.codec.encode("a text", special=True) == near.codec.encode("a text", special=True)
    assert await files.model([str(joining.checkpoint)]) == made
    assert len([name for name in os.listdir(tmp_path / "files") if name.endswith(".file")]) == len(names)


async def test_no_other_file_is_given_away(joining: Joining, tmp_path: Path) -> None:
    node = await joining.node("far")
    files = FetchedFiles(node, tmp_path)
    with pytest.raises(FetchError, match="is the folder of no model that is served") as refused:
        await files.model([str(tmp_path)])
    assert not refused.value.later
    head: Any = node.ref(f"head/{GATEWAY_ADMISSION}")
    for folder, name, said in (
        (str(joining.checkpoint), "model.safetensors", "model.safetensors is no file that a gateway needs"),
        (str(joining.checkpoint), "../secret", "is no file that a gateway needs"),
        ("", "head_keys", "no setting head_keys names a file for gateways"),
        (str(tmp_path), "config.json", "is the folder of no model that is served"),
    ):
        with pytest.raises(Exception, match=said):
            async for _ in head.content(folder, name, returns=bytes):
                pass


async def test_a_file_that_changes_on_the_way_is_fetched_again_or_refused(
    joining: Joining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await joining.node("far")
    files = FetchedFiles(node, tmp_path)
    said = await files._ask([str(joining.checkpoint)])
    wrong = FolderListing([fetched_files_of(said, "0" * 64)], said.config, said.embeds)
    answers = [wrong, said]

    async def ask(folders: list[str]) -> FolderListing:
        return answers.pop(0)

    monkeypatch.setattr(files, "_ask", ask)
    assert (await files.model([str(joining.checkpoint)])).config == said.config
    answers += [wrong, wrong]
    with pytest.raises(FetchError, match="changed while it was fetched; try again") as refused:
        await files.model([str(joining.checkpoint)])
    assert refused.value.later


def fetched_files_of(said: FolderListing, hash: str) -> Any:
    folder = said.folders[0]
    return type(folder)(folder.folder, dict.fromkeys(folder.files, hash))


async def test_a_head_that_is_gone(joining: Joining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await joining.node("far")
    joining.launcher.network.cut(node.endpoint)
    monkeypatch.setattr(fetched_files, "SECONDS", 0.05)
    with pytest.raises(FetchError, match=r"not here and the head does not answer .* try again") as refused:
        await FetchedFiles(node, tmp_path).model([str(joining.checkpoint)])
    assert refused.value.later


def test_folders_of_killed_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / "file").touch()
    with private_folder() as mine:
        assert not left.exists()
        with private_folder() as other:
            assert mine.is_dir(), "its process lives"
            assert mine != other
    assert os.listdir(tmp_path) == []


def test_a_thread_that_still_writes_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    delete = shutil.rmtree

    def write() -> None:
        for late in (
            lambda: fetched_files._write(mine / "late.file", b"late"),
            lambda: fetched_files._link(mine / "a" / "b", {}),
        ):
            with pytest.raises(FileNotFoundError):
                late()

    def delete_late(folder: Path, *, ignore_errors: bool) -> None:
        write()
        delete(folder, ignore_errors=ignore_errors)
        write()

    with private_folder() as mine:
        fetched_files._write(mine / "early.file", b"early")
        fetched_files._link(mine / "a" / "b", {"early": mine / "early.file"})
        monkeypatch.setattr(shutil, "rmtree", delete_late)
    assert os.listdir(tmp_path) == []

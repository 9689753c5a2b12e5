"""Adding stores what is new and nothing else, whatever it is called and however it is stored; bad input changes nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.model.tiers import tier_source
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.zoo.models import WEIGHTS, doubled, files, infinite, tensor_files, variant
from blockwright.zoo.add import add
from blockwright.zoo.errors import StorageError, ZooError
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.source import open_source
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Path]


def refused(zoo: Path, source: object, name: str, **more: str) -> str:
    """The caller gets the reason; the zoo is as it was."""
    before = files(zoo)
    with pytest.raises(CheckpointError) as raised:
        add(zoo, str(source), name, **more)
    assert files(zoo) == before
    return str(raised.value)


@claim("A zoo stores each distinct tensor once, whatever its name, file or fusion", of="fine-tunes")
def test_twenty_fine_tunes_of_one_tensor_are_one_base_and_twenty_tensors(checkpoint: Make, tmp_path: Path) -> None:
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    first = add(zoo, str(base), "base")
    distinct = len(load_file(base / WEIGHTS))
    assert (first.base, first.shared, first.tensors, first.stored) == ("", 0.0, distinct, first.nbytes)
    name = "model.layers.1.mlp.up_proj.weight"
    size = 112 * 64 * 4
    for i in range(20):
        tuned = variant(base, tmp_path / f"tuned{i}", {name: lambda t, i=i: t + 0.001 * (i + 1)})  # type: ignore[misc]
        added = add(zoo, str(tuned), f"tuned{i}")
        assert (added.base, added.tensors, added.stored) == ("base", 1, size)
        assert added.nbytes == first.nbytes
    assert len(tensor_files(zoo)) == distinct + 20
    owned = {one.application: (one.owned, one.base) for one in Zoo(zoo).listings()}
    assert owned == {"base": (size, ""), **{f"tuned{i}": (size, "base") for i in range(20)}}
    # cut only where they differ: below the changed feed-forward, itself, and above it
    cuts = [(one.first, one.last, len(one.others)) for one in Zoo(zoo).blocks("tuned3")]
    assert cuts == [(0, 4, 20), (4, 5, 0), (5, 8, 20)]
    assert not verify(zoo).faults


def fused(split: Path, folder: Path) -> Path:
    """A Phi-3 checkpoint whose projections are stored apart, as Llama's are: the same components under other names."""
    shutil.copytree(split, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / WEIGHTS)
    for i in range(config["num_hidden_layers"]):
        at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        tensors[f"{at}.qkv_proj.weight"] = torch.cat([tensors.pop(f"{at}.{x}_proj.weight") for x in "qkv"])
        tensors[f"{mlp}.gate_up_proj.weight"] = torch.cat([tensors.pop(f"{mlp}.{x}_proj.weight") for x in ("gate", "up")])
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@claim("A zoo stores each distinct tensor once, whatever its name, file or fusion", of="fine-tunes")
def test_fused_and_split_files_are_the_same_tensors(checkpoint: Make, tmp_path: Path) -> None:
    split, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(split), "split")
    added = add(zoo, str(fused(split, tmp_path / "fused")), "fused")
    assert (added.base, added.stored, added.tensors, added.shared) == ("split", 0, 0, 1.0)
    assert Zoo(zoo).chain("fused").components == Zoo(zoo).chain("split").components
    sharded = tmp_path / "sharded"
    shutil.copytree(split, sharded, ignore=shutil.ignore_patterns(WEIGHTS))
    names = sorted(load_file(split / WEIGHTS))
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({name: load_file(split / WEIGHTS)[name] for name in part}, sharded / f"{i}.safetensors")
    index = {"weight_map": {name: f"{i % 2}.safetensors" for i, name in enumerate(names)}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert add(zoo, str(sharded), "sharded").stored == 0


@pytest.mark.parametrize("architecture", ["llama-tied", "gpt-neox", "phi3-longrope", "gemma2", "qwen2", "glm"])
def test_what_is_stored_is_what_was_read(checkpoint: Make, tmp_path: Path, architecture: str) -> None:
    """By the safetensors library: each file holds one tensor, and the tensors of each component are those of the model."""
    source, zoo = checkpoint(architecture), tmp_path / "zoo"
    add(zoo, str(source), "one")
    stored = {}
    for name in tensor_files(zoo):
        with safe_open(zoo / name, "pt") as file:
            assert list(file.keys()) == ["tensor"]
            stored[Path(name).stem] = file.get_tensor("tensor")
    checkpoint_ = Checkpoint.open(source)
    hashes = checkpoint_.hashes()
    assert stored.keys() == {hash.hex() for hash in hashes.values()}
    raw = load_file(source / WEIGHTS)
    for ref, hash in hashes.items():
        if not ref.stretch and ref.shape == tuple(raw[ref.name].shape):
            assert torch.equal(stored[hash.hex()], raw[ref.name])
    assert [bytes.fromhex(id) for id in Zoo(zoo).chain("one").components] == checkpoint_.ids(hashes)


def test_tied_embeddings_are_stored_once(checkpoint: Make, tmp_path: Path) -> None:
    source, zoo = checkpoint("llama-tied"), tmp_path / "zoo"
    added = add(zoo, str(source), "tied")
    assert added.nbytes == Checkpoint.open(source).nbytes - 384 * 64 * 4
    assert added.tensors == len(load_file(source / WEIGHTS))


def test_what_a_model_is_made_of_is_no_adapter_and_the_nearest(checkpoint: Make, tmp_path: Path) -> None:
    """All of these share as many bytes with it, and others come before its base in the alphabet."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "m-base")
    add(zoo, str(make_adapter(base, tmp_path / "adapter", target_modules=["v_proj"])), "a-lora", base="m-base")
    larger = make_adapter(base, tmp_path / "larger", target_modules=["v_proj"], modules_to_save=["lm_head"])
    add(zoo, str(larger), "b-lora", base="m-base")
    assert add(zoo, str(base), "z-copy").base == "m-base"
    tuned = variant(base, tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    assert add(zoo, str(tuned), "tuned").base == "m-base"
    remove(zoo, "m-base")
    remove(zoo, "z-copy")
    remove(zoo, "tuned")
    alone = add(zoo, str(base), "alone")
    assert (alone.base, alone.shared) == ("", 1.0)


def test_types_are_stored_as_they_are(checkpoint: Make, tmp_path: Path) -> None:
    """Equal numbers in another type are other bytes."""
    zoo = tmp_path / "zoo"
    sizes = {dtype: add(zoo, str(checkpoint("llama", dtype=dtype)), dtype).stored for dtype in ("float32", "bfloat16")}
    sizes["float16"] = add(zoo, str(checkpoint("llama", dtype="float16")), "float16").stored
    assert sizes["float32"] == 2 * sizes["bfloat16"] == 2 * sizes["float16"]


def test_the_same_model_twice(checkpoint: Make, tmp_path: Path) -> None:
    """Under its name nothing changes, but what is missing is restored; under another there is one more name."""
    source, zoo = str(checkpoint("llama")), tmp_path / "zoo"
    add(zoo, source, "one")
    before = files(zoo)
    again = add(zoo, source, "one")
    assert (again.there, again.stored) == (True, 0)
    assert files(zoo) == before
    lost = zoo / sorted(tensor_files(zoo))[0]
    lost.unlink()
    (zoo / "components" / f"{Zoo(zoo).chain('one').components[2]}.json").unlink()
    assert add(zoo, source, "one").tensors == 1
    assert files(zoo) == before
    lost.write_bytes(lost.read_bytes()[:-1])
    assert add(zoo, source, "two").tensors == 1
    assert {name for name in files(zoo).keys() - before.keys() if not name.startswith("chains/two/")} == set()
    assert not verify(zoo).faults


def test_another_zoo_is_a_source_too(checkpoint: Make, tmp_path: Path) -> None:
    add(tmp_path / "one", str(checkpoint("qwen2")), "model")
    add(tmp_path / "two", str(tmp_path / "one" / "chains" / "model"), "model")
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert one.pop("chains/model/chain.json") != two.pop("chains/model/chain.json")  # they say what they were made from
    assert one == two


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "-a", ".a", "a b", "a\n", "ä", "a\0", "a" * 101])
def test_names_that_could_leave_the_folder_are_refused(checkpoint: Make, tmp_path: Path, name: str) -> None:
    zoo = tmp_path / "zoo"
    add(zoo, str(checkpoint("llama")), "base")
    assert "at most 100 letters, digits, '.', '_' and '-'" in refused(zoo, checkpoint("llama"), name)
    with pytest.raises(ZooError):
        Zoo(zoo).folder(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo"]


def test_bad_input_changes_nothing(checkpoint: Make, tmp_path: Path) -> None:
    source, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(source), "base")
    other = variant(source, tmp_path / "other", {"up_proj": doubled})
    text = refused(zoo, other, "base")
    assert text == (
        f"zoo {zoo} has another application base, added from '{source}'; choose another name, or remove that one first"
    )
    assert "has no application 'nobody'; there are: base" in refused(zoo, other, "tuned", base="nobody")
    assert "neither a folder nor a hub id" in refused(zoo, tmp_path / "nowhere", "tuned")
    pickled = variant(source, tmp_path / "pickled", {"up_proj": doubled})
    (pickled / WEIGHTS).rename(pickled / "pytorch_model.bin")
    assert "only as pickles" in refused(zoo, pickled, "tuned")
    diverged = variant(source, tmp_path / "diverged", {"up_proj": infinite})
    assert "up_proj.weight has values that are NaN or infinite" in refused(zoo, diverged, "tuned")
    raw = (other / WEIGHTS).read_bytes()
    (other / WEIGHTS).write_bytes(raw[:-9])
    assert "is truncated" in refused(zoo, other, "tuned")


def test_links_that_lead_nowhere_are_reported(checkpoint: Make, tmp_path: Path) -> None:
    source, zoo = checkpoint("llama"), tmp_path / "zoo"
    loop, gone = tmp_path / "owner" / "loop", tmp_path / "gone"
    loop.parent.mkdir()
    loop.symlink_to(loop)
    gone.symlink_to(tmp_path / "nowhere")
    for path in (loop, gone):
        assert "is a link that leads nowhere, or to itself" in refused(zoo, path, "tuned")
    partial = variant(source, tmp_path / "partial", {"up_proj": doubled})
    (partial / "tokenizer.json").unlink(missing_ok=True)
    (partial / "tokenizer.json").symlink_to("tokenizer.json")
    assert "tokenizer.json is a link that leads to no file" in refused(zoo, partial, "tuned"), "it would be left out"
    with pytest.raises(ZooError, match="it is a link that leads to itself; mend it or name another zoo"):
        add(loop, str(source), "base")


def test_a_folder_of_somebody_else_becomes_no_zoo(checkpoint: Make, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    text = refused(tmp_path, checkpoint("llama"), "base")
    assert text == f"{tmp_path} is not a zoo and holds other files (thesis.tex); name an empty or a new folder"
    with pytest.raises(ZooError, match=r"is not a zoo: it has no zoo\.json; make one"):
        Zoo(tmp_path)


def test_a_model_that_changes_while_it_is_added(checkpoint: Make, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    add(zoo, str(checkpoint("llama")), "base")
    before = files(zoo)
    source = variant(checkpoint("llama"), tmp_path / "source", {"up_proj": doubled})
    stored = 0

    def spoil(what: str, done: int, total: int) -> None:
        nonlocal stored
        stored += what == "storing"
        if stored == 1:
            raw = bytearray((source / WEIGHTS).read_bytes())
            raw[-1000:] = bytes(1000)
            raw[8 + int.from_bytes(raw[:8], "little") :] = bytes(len(raw) - 8 - int.from_bytes(raw[:8], "little"))
            (source / WEIGHTS).write_bytes(raw)

    with pytest.raises(ZooError, match=r"up_proj\.weight has changed while it was added"):
        add(zoo, str(source), "tuned", progress=spoil)
    assert files(zoo) == before


def test_memory_does_not_grow_with_the_model(checkpoint: Make, tmp_path: Path) -> None:
    source = checkpoint("llama", vocab_size=60_000)
    largest = 60_000 * 64 * 4
    tracemalloc.start()
    try:
        assert add(tmp_path / "zoo", str(source), "large").stored > 2 * largest
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < largest / 3


@pytest.mark.parametrize("number", some((errno.ENOSPC, errno.EROFS, errno.EACCES), errno.ENOSPC))
def test_a_disk_that_refuses_at_any_step(checkpoint: Make, tmp_path: Path, number: int) -> None:
    """Everything is taken back: the zoo is as it was, and adding works when the disk does."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    before = files(zoo)
    tuned = variant(base, tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    last = -1
    while True:
        last, step = last + 1, 0

        def fail(word: str, last: int = last) -> None:
            nonlocal step
            step += 1
            if step > last:
                raise OSError(number, "it says no")

        try:
            add(zoo, str(tuned), "tuned", step=fail)
            break
        except StorageError as error:
            message = str(error)
        assert message.startswith(f"zoo {zoo} cannot be used (it says no); ")
        assert message.endswith("; the zoo is as it was")
        left = {name: content for name, content in files(zoo).items() if not name.startswith("tmp/")}
        assert left == before
    assert last > 20
    assert not verify(zoo).faults


def test_a_disk_without_room(checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = tmp_path / "zoo"
    add(zoo, str(checkpoint("llama")), "base")
    tuned = variant(checkpoint("llama"), tmp_path / "tuned", {"layers.1.mlp.up_proj": doubled})
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 100, 7, 6, 100, 7, 7, 0, 255)))
    needs = f"zoo {zoo} needs 28672 bytes more and 24576 are free there; free some room on that disk"
    assert refused(zoo, tuned, "tuned") == needs
    assert add(zoo, str(checkpoint("llama")), "same").stored == 0


@claim("A zoo stores only the heads of a family whose whole model it has", of="families")
def test_a_family_adds_only_its_heads_and_takes_them_along(checkpoint: Make, tmp_path: Path) -> None:
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    family = make_family(base, tmp_path / "family", {1: "low", 2: "shared"})
    listed = json.loads((family / "exits.json").read_text())
    listed["exits"][0]["auto"] = {"theta": 0.75, "measure": "least"}
    (family / "exits.json").write_text(json.dumps(listed))
    add(zoo, str(base), "base")
    before = files(zoo)
    added = add(zoo, str(family), "family")
    heads = sum(tensor.nbytes for tensor in load_file(family / "exits.safetensors").values())
    assert (added.base, added.tensors, added.stored) == ("base", 2, heads)
    assert add(zoo, str(family), "family").there
    assert {one.application: one.owned for one in Zoo(zoo).listings()} == {"base": 0, "family": heads}
    stored, folder = open_source(Zoo(zoo).folder("family")), open_source(family)
    for layers in (1, 2):
        tier = open_source(tier_source(str(Zoo(zoo).folder("family")), layers))
        assert [one.component.id for one in tier.specs(16, "float32")] == [
            one.component.id for one in folder.at_exit(layers).specs(16, "float32")
        ]
        assert tier.chain == folder.at_exit(layers).chain
    again = add(tmp_path / "other", str(Zoo(zoo).folder("family")), "copy")
    assert again.stored == added.nbytes
    assert [*open_source(Zoo(tmp_path / "other").folder("copy")).exits] == [*stored.exits] == [1, 2]
    assert stored.thresholds == {1: Threshold(theta=0.75, measure="least")}
    del stored, tier
    gc(zoo)
    assert not verify(zoo).faults
    remove(zoo, "family")
    gc(zoo)
    assert files(zoo) == before

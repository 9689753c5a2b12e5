"""An adapter is stored as what it changes: its own tensors, over the components of a base that is there already."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from blockwright.api.http.catalog import load_model
from blockwright.api.text.chat_template import Rendering
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.identity import hash_tensor
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.adapters import base_model, greedy, make_adapter, make_bottleneck, peft_model
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import some
from blockwright.tests.zoo.models import files, tensor_files
from blockwright.zoo.add import add
from blockwright.zoo.remove import gc, remove
from blockwright.zoo.source import holds_adapter, open_source
from blockwright.zoo.verify import verify
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Path]
WEIGHTS = "adapter_model.safetensors"


def contents(specs: list[ComponentSpec]) -> list[Any]:
    """All that a back end gets, wherever it lies."""
    return [
        (
            spec.component,
            spec.config,
            {role: hash_tensor(ref) for role, ref in spec.tensors.items()},
            spec.delta and (spec.delta.id, spec.delta.config, {r: hash_tensor(t) for r, t in spec.delta.tensors.items()}),
        )
        for spec in specs
    ]


@pytest.mark.parametrize("architecture", some(("llama", "phi3", "gpt-neox", "qwen2"), "phi3", "gpt-neox"))
def test_what_is_opened_is_the_folder_over_its_base(checkpoint: Make, tmp_path: Path, architecture: str) -> None:
    """Fused modules of the base, too. Stored are the adapter's tensors, each once, and nothing of the base."""
    base, zoo = checkpoint(architecture), tmp_path / "zoo"
    adapter = make_adapter(base, tmp_path / "adapter")
    add(zoo, str(base), "base")
    before = tensor_files(zoo)
    added = add(zoo, str(adapter), "tuned", base="base")
    own = {hash for spec in open_adapter(adapter, Checkpoint.open(base)).specs(16, "float32") for hash in deltas_of(spec)}
    assert {Path(name).stem for name in tensor_files(zoo) - before} == own
    assert (added.base, added.tensors) == ("base", len(own))
    assert added.stored == sum(tensor.nbytes for tensor in load_file(adapter / WEIGHTS).values())
    ours = open_source(zoo / "chains" / "tuned")
    assert contents(ours.specs(16, "float32")) == contents(open_adapter(adapter, Checkpoint.open(base)).specs(16, "float32"))
    assert (ours.path, ours.config) == (zoo / "chains" / "tuned", Checkpoint.open(base).config)
    variants = [folder for folder in (base, adapter, *(zoo / "chains").iterdir()) if holds_adapter(folder)]
    assert sorted(variants) == sorted([adapter, zoo / "chains" / "tuned"])
    assert not verify(zoo).faults


def deltas_of(spec: ComponentSpec) -> set[str]:
    return {hash_tensor(ref).hex() for ref in spec.delta.tensors.values()} if spec.delta is not None else set()


@pytest.mark.parametrize("form", ["PromptTuningConfig", "PrefixTuningConfig", "bottleneck"])
def test_every_form_is_stored(checkpoint: Make, tmp_path: Path, form: str) -> None:
    base = checkpoint("llama")
    zoo = tmp_path / "zoo"
    folder = tmp_path / "adapter"
    if form == "bottleneck":
        make_bottleneck(base, folder, mh_adapter=True)
    else:
        make_adapter(base, folder, kind=form, num_virtual_tokens=3)
    add(zoo, str(base), "base")
    add(zoo, str(folder), "tuned", base="base")
    ours, theirs = open_source(zoo / "chains" / "tuned"), open_adapter(folder, Checkpoint.open(base))
    assert contents(ours.specs(16, "float32")) == contents(theirs.specs(16, "float32"))
    assert ours.virtual == theirs.virtual
    assert not verify(zoo).faults


def test_an_adapter_over_an_application_of_a_zoo_is_that_over_its_folder(checkpoint: Make, tmp_path: Path) -> None:
    """As when a server is asked to serve one; and while it does, the base cannot be removed."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    add(zoo, str(base), "base")
    opened = open_source(adapter, zoo / "chains" / "base")
    assert contents(opened.specs(16, "float32")) == contents(
        open_adapter(adapter, Checkpoint.open(base)).specs(16, "float32")
    )
    with pytest.raises(CheckpointError, match="is being served"):
        remove(zoo, "base")


def test_equal_deltas_and_saved_modules(checkpoint: Make, tmp_path: Path) -> None:
    """The same adapter under two names stores nothing more; a module that it replaces is stored whole."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["v_proj"])
    add(zoo, str(adapter), "one", base="base")
    assert add(zoo, str(adapter), "two", base="base").stored == 0
    assert add(zoo, str(adapter), "two", base="base").there
    saving = make_adapter(base, tmp_path / "saving", seed=1, target_modules=["v_proj"], modules_to_save=["lm_head"])
    added = add(zoo, str(saving), "saving", base="base")
    assert added.stored == sum(tensor.nbytes for tensor in load_file(saving / WEIGHTS).values())
    chains = Zoo(zoo).chains()
    assert chains["saving"].components[:-1] == chains["base"].components[:-1]
    assert chains["saving"].components[-1] != chains["base"].components[-1]
    shown = [(one.first, one.last, one.others) for one in Zoo(zoo).blocks("one")]
    # a LoRA of every attention: its own blocks, and the base's between them
    assert shown[0] == (0, 1, ("base", "saving", "two"))
    assert shown[1] == (1, 2, ("two",))
    assert [(one.first, one.last) for one in Zoo(zoo).blocks("base")] == [(i, i + 1) for i in range(8)]


def test_what_it_adds_goes_with_it(checkpoint: Make, tmp_path: Path) -> None:
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    before = files(zoo)
    add(zoo, str(make_adapter(base, tmp_path / "adapter")), "tuned", base="base")
    remove(zoo, "base")
    assert gc(zoo).files == 0  # the tuned one needs all of it
    assert len(open_source(zoo / "chains" / "tuned")) == 8
    add(zoo, str(base), "base")
    remove(zoo, "tuned")
    gc(zoo)
    assert files(zoo).keys() == before.keys()


def test_a_flipped_bit_in_a_delta(checkpoint: Make, tmp_path: Path) -> None:
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    add(zoo, str(make_adapter(base, tmp_path / "adapter")), "tuned", base="base")
    for path in ((zoo / "deltas").iterdir(), sorted(zoo / name for name in tensor_files(zoo))):
        chosen = next(iter(path))
        raw = bytearray(chosen.read_bytes())
        raw[len(raw) // 2] ^= 4
        chosen.write_bytes(raw)
        assert [fault.path for fault in verify(zoo).faults] == [chosen]
        raw[len(raw) // 2] ^= 4
        chosen.write_bytes(raw)
    lost = next((zoo / "deltas").iterdir())
    lost.unlink()
    (fault,) = verify(zoo).faults
    assert (fault.path, fault.found, fault.chains) == (lost, "none", ("tuned",))


def test_bad_adapters_change_nothing(checkpoint: Make, tmp_path: Path) -> None:
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    adapter = make_adapter(base, tmp_path / "adapter")
    add(zoo, str(adapter), "tuned", base="base")
    add(zoo, str(checkpoint("gemma")), "gemma")
    before = files(zoo)

    def refused(words: str, folder: Path = adapter, base: str = "base") -> None:
        with pytest.raises(CheckpointError, match=words):
            add(zoo, str(folder), "new", base=base)
        assert files(zoo) == before

    refused(r"is an adapter; 2 models may be its base \(base, gemma\).*; name its base with --base", base="")
    refused("tuned is an adapter itself, which .* cannot change; name its base", base="tuned")
    refused("has no application 'bsae'; there are: base, gemma, tuned", base="bsae")
    refused("has shape .* where .* of the base .* ask for .*; name the base that the adapter was trained on", base="gemma")

    def broken(name: str, **changes: object) -> Path:
        folder = tmp_path / name
        shutil.copytree(adapter, folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | changes))
        return folder

    refused("use_dora is True, which is not supported", broken("dora", use_dora=True))
    refused(r"has shape \[4, 112\] where .* ask for \[5, 112\]; .* or correct the rank", broken("rank", r=5))
    refused("is not among target_modules", broken("target", target_modules=["q_proj"]))
    pickled = broken("pickled")
    (pickled / WEIGHTS).rename(pickled / "adapter_model.bin")
    refused("is a pickle, which is never loaded", pickled)
    strange = broken("strange")
    tensors = load_file(strange / WEIGHTS)
    save_file({name.replace("layers.2.", "layers.7."): tensor for name, tensor in tensors.items()}, strange / WEIGHTS)
    refused("was made for another base: it has 8 layers, base has 3", strange)


@pytest.mark.parametrize("backend", ["torch", "native"])
async def test_tenants_of_a_zoo_answer_as_peft_does(checkpoint: Make, tmp_path: Path, backend: str) -> None:
    """Base and two adapters, all read from the zoo, on one worker whose parameters they share."""
    base, zoo = checkpoint("llama"), tmp_path / "zoo"
    add(zoo, str(base), "base")
    folders = [make_adapter(base, tmp_path / f"a{i}", seed=i, r=3 + i) for i in range(2)]
    for i, folder in enumerate(folders):
        add(zoo, str(folder), f"a{i}", base="base")
    rig = await Rig.start([zoo / "chains" / name for name in ("base", "a0", "a1")], backend=backend)
    try:
        prompt = list(prompt_of(20, seed=2))
        answers = [await rig.generate(f"r{name}", prompt, 16, application=name) for name in "abc"]
        models = [base_model(base), *(peft_model(base, folder) for folder in folders)]
        assert answers == [greedy(model, prompt, 16) for model in models]
        assert all(0 < rig.added[name] < rig.added["a"] / 2 for name in "bc")
    finally:
        await rig.stop()


@pytest.mark.parametrize("base", ["", "base", "./base"])
def test_an_adapter_whose_base_is_not_there_makes_no_zoo(checkpoint: Make, tmp_path: Path, base: str) -> None:
    adapter = make_adapter(checkpoint("llama"), tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="there are: none") as caught:
        add(tmp_path / "zoo", str(adapter), "tuned", base=base)
    assert "add th" in str(caught.value)
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize("template", ["file", "configuration"])
def test_its_own_texts_are_stored_over_its_bases(checkpoint: Make, tmp_path: Path, template: str) -> None:
    """What a front makes of the zoo's folder is what it makes of the adapter's folder over the base's."""
    base, zoo = shutil.copytree(checkpoint("llama"), tmp_path / "base"), tmp_path / "zoo"
    (base / "chat_template.jinja").write_text("base {{ messages[0].content }}")
    (base / "generation_config.json").write_text('{"top_k": 5, "temperature": 0.5}')
    adapter, own = make_adapter(base, tmp_path / "adapter"), "own {{ messages[0].content }}"
    settings: dict[str, Any] = {"eos_token": "<unk>"}
    if template == "file":
        (adapter / "chat_template.jinja").write_text(own)
    else:
        settings["chat_template"] = own
    (adapter / "tokenizer_config.json").write_text(json.dumps(settings))
    numbers = {"temperature": 0.9, "suppress_tokens": [9], "bad_words_ids": [[3, 4]], "sequence_bias": [[[5], 1.5]]}
    (adapter / "generation_config.json").write_text(json.dumps({**numbers, "stop_strings": ["x"], "num_beams": 2}))
    add(zoo, str(base), "base")
    add(zoo, str(adapter), "tuned", base="base")
    stored = zoo / "chains" / "tuned"
    ours, theirs = load_model(CheckpointFiles(stored)), load_model(CheckpointFiles(adapter, base))
    assert (ours.defaults, ours.generation, ours.stop_tokens) == (theirs.defaults, theirs.generation, theirs.stop_tokens)
    assert (ours.codec.named, ours.codec.special) == (theirs.codec.named, theirs.codec.special)
    assert ours.defaults.top_k == 5
    how = Rendering(begin=True, proceed=False, variables={}, longest=100)
    texts = [model.template.render([{"role": "user", "content": "hi"}], how) for model in (ours, theirs) if model.template]
    assert texts == ["own hi", "own hi"]
    assert open_source(stored).generation == open_adapter(adapter, Checkpoint.open(base)).generation
    assert not verify(zoo).faults

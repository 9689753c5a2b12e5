"""PEFT folders: what is read, and the sentence that refuses everything else by field, value and remedy."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.adapter import is_adapter, open_adapter, trained_on
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint, make_family
from blockwright.tests.claims import claim
from blockwright.zoo.source import open_source

Checkpoints = Callable[..., Path]
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def made(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = checkpoint("llama")
    return base, make_adapter(base, tmp_path_factory.mktemp("made") / "lora", target_modules=["q_proj", "down_proj"])


def open_checkpoint(folder: Path, base: Path) -> Checkpoint:
    return open_adapter(folder, Checkpoint.open(base))


class Folder:
    """A copy of an adapter that a test spoils."""

    def __init__(self, source: Path, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.config: dict[str, Any] = json.loads((source / "adapter_config.json").read_text())
        self.tensors = load_file(source / "adapter_model.safetensors")

    def open(self, base: Path) -> Checkpoint:
        (self.path / "adapter_config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, self.path / "adapter_model.safetensors")
        return open_checkpoint(self.path, base)


@pytest.fixture
def folder(made: tuple[Path, Path], tmp_path: Path) -> Folder:
    return Folder(made[1], tmp_path / "copy")


def test_a_variant_shares_its_base_and_differs_where_it_is_changed(made: tuple[Path, Path]) -> None:
    base, adapter = Checkpoint.open(made[0]), open_source(made[1], made[0])
    assert is_adapter(made[1])
    assert not is_adapter(made[0])
    ours, theirs = base.specs(16, "float32"), adapter.specs(16, "float32")
    assert [spec.component.id for spec in ours] == [spec.component.shared for spec in theirs]
    assert [spec.delta is not None for spec in theirs] == [False, *[True] * 6, False]
    assert len({spec.component.id for spec in [*ours, *theirs]}) == 8 + 6
    assert adapter.nbytes - base.nbytes == sum(spec.component.delta_nbytes for spec in theirs) > 0
    again = adapter.specs_with_ids(
        16,
        "float32",
        [spec.component.shared for spec in theirs],
        hashes=[spec.hashes for spec in theirs],
        deltas=[spec.component.delta for spec in theirs],
    )
    assert again == theirs
    assert [spec.component.id for spec in theirs[1].loads()] == [ours[1].component.id, theirs[1].component.id]


def test_a_saved_module_is_a_component_of_its_own(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    adapter = make_adapter(base, tmp_path / "a", target_modules=["v_proj"], modules_to_save=["lm_head"])
    head = open_source(adapter, base).specs(16, "float32")[-1]
    assert head.delta is None
    assert head.component.base == b""
    assert head.component.id != Checkpoint.open(base).specs(16, "float32")[-1].component.id


def test_what_the_numbers_of_an_adapter_are_is_part_of_its_identity(folder: Folder, made: tuple[Path, Path]) -> None:
    first = folder.open(made[0]).specs(16, "float32")
    assert [s.component.id for s in open_source(made[1], made[0]).specs(16, "float32")] == [s.component.id for s in first]
    folder.config["lora_alpha"] = 9
    assert folder.open(made[0]).specs(16, "float32")[1].component.id != first[1].component.id
    folder.config["lora_alpha"] = 8
    folder.tensors[f"{Q}.lora_B.weight"][0, 0] += 1
    changed = folder.open(made[0]).specs(16, "float32")
    assert [a.component.id == b.component.id for a, b in zip(changed, first, strict=True)] == [True, False, *[True] * 6]


@claim("An adapter for another base, of a wrong rank or for a wrong module is refused by name", of="fine-tunes")
@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("peft_type", "IA3", "peft_type 'IA3' is not supported"),
        ("peft_type", 3, "peft_type is 3, not a string"),
        ("use_dora", True, "use_dora is True, which is not supported; DoRA scales the whole weight; merge the adapter"),
        ("lora_bias", True, "lora_bias is True"),
        ("bias", "some", "bias is 'some', not none, all or lora_only"),
        ("fan_in_fan_out", True, "fan_in_fan_out is True, .* set it to false"),
        ("layer_replication", [[0, 1]], "layer_replication is"),
        ("target_parameters", ["x"], "target_parameters is"),
        ("trainable_token_indices", [1], "trainable_token_indices is"),
        ("alora_invocation_tokens", [1], "alora_invocation_tokens is"),
        ("use_qalora", True, "use_qalora is True"),
        ("something_new", {"a": 1}, "something_new is {'a': 1}, which is not supported; merge"),
        ("task_type", "SEQ_CLS", "task_type is 'SEQ_CLS', not CAUSAL_LM"),
        ("init_lora_weights", "pissa", "init_lora_weights is 'pissa', which changes the base's weights"),
        ("r", 0, "r is 0, not an integer"),
        ("r", 5, r"lora_A.weight has shape \[4, 112\] where .*down_proj .* ask for \[5, 112\]; name the base"),
        ("r", 65, "the rank of .* is 65, more than its 64 rows or its width [0-9]*; merge the adapter"),
        ("rank_pattern", {"q_proj": "x"}, "the rank of model.layers.0.self_attn.q_proj is 'x', not 1 to 4096"),
        ("rank_pattern", {"(": 3}, "is not a supported regular expression"),
        ("alpha_pattern", {"q_proj": None}, "the alpha of .*q_proj is None, not a number"),
        ("alpha_pattern", {"q_proj": 10**400}, "the alpha of .*q_proj is 1000.*, not a number"),
        ("lora_alpha", 1e300, r"the alpha of .* is 1e\+300, not a number up to 1e\+09"),
        ("lora_alpha", "8", "lora_alpha is '8', not a finite number"),
        ("target_modules", None, "target_modules is None, not a list of module names or a regular expression"),
        ("target_modules", [1], "target_modules is .1., not a name or a list of names"),
        ("target_modules", ["q_proj"], "module model.layers.0.mlp.down_proj is not among target_modules"),
        ("target_modules", ["q_proj", "down_proj", "v_proj"], "lacks lora_A and lora_B of model.layers.0.self_attn.v_proj"),
        ("target_modules", "(", "is not a supported regular expression"),
        ("target_modules", "(a|a)*b", "lacks lora_A|is not among target_modules"),
        ("layers_to_transform", [-1], "layers_to_transform is .-1., not a layer"),
        ("layers_to_transform", [0] * 20_001, "layers_to_transform has 20001 entries, more than 20000"),
        ("target_modules", ["q"] * 20_001, "target_modules has 20001 entries"),
        ("modules_to_save", ["q"] * 20_001, "modules_to_save has 20001 entries"),
        ("rank_pattern", {f"q{i}": 4 for i in range(20_001)}, "rank_pattern has 20001 entries"),
        ("alpha_pattern", {f".*q{i}": 4 for i in range(257)}, "alpha_pattern has 257 regular expressions, more than 256"),
        ("task", "x" * (4 << 20), "adapter_config.json is too long"),
    ],
)
def test_an_option_that_is_not_supported_is_named(
    folder: Folder, made: tuple[Path, Path], field: str, value: object, sentence: str
) -> None:
    folder.config[field] = value
    with pytest.raises(CheckpointError, match=sentence) as caught:
        folder.open(made[0])
    assert str(folder.path) in str(caught.value)


def test_a_header_that_takes_long_to_read_is_refused(folder: Folder, made: tuple[Path, Path]) -> None:
    folder.open(made[0])
    header = json.dumps({"x" * (8 << 20): {}}).encode()
    (folder.path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match=r"has a header of .* bytes, more than 8388608; save fewer tensors"):
        open_checkpoint(folder.path, made[0])


def renamed(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


@claim("An adapter for another base, of a wrong rank or for a wrong module is refused by name", of="fine-tunes")
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda t: renamed(t, "q_proj", "query"),
            "module model.layers.0.self_attn.query is not a linear module of the base",
        ),
        (lambda t: renamed(t, "layers.2", "layers.9"), "was made for another base: it has 10 layers, .* has 3"),
        (lambda t: renamed(t, "base_model.model.", ""), "does not begin with base_model.model."),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "has lora_A of model.layers.0.self_attn.q_proj alone"),
        (lambda t: t.clear(), "lacks lora_A and lora_B of"),
        (lambda t: renamed(t, "q_proj.lora_A", "q_proj.lora_embedding_A"), "lora_embedding_A.weight is not supported"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(4)}), "lora_magnitude_vector is not supported"),
        (
            lambda t: t.update({"base_model.model.extra.weight": torch.ones(4)}),
            "extra.weight belongs to no module of the base",
        ),
        (lambda t: t.update({f"{Q}.base_layer.bias": torch.ones(64)}), "replaces a bias that the base .* does not have"),
        (lambda t: t.update({f"{Q}.beft_bias": torch.ones(1, 63)}), r"has shape \[63\] where"),
        (lambda t: t.update({f"{Q}.lora_B.weight": torch.ones(65, 4)}), r"has shape \[65, 4\] where"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 64, dtype=torch.int8)}), "is quantized"),
        (lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(3, 64)}), r"has shape \[3, 64\] where lm_head"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_named(
    folder: Folder, made: tuple[Path, Path], spoil: Callable[[dict[str, torch.Tensor]], object], sentence: str
) -> None:
    spoil(folder.tensors)
    with pytest.raises(CheckpointError, match=sentence):
        folder.open(made[0])


@claim("An adapter for another base, of a wrong rank or for a wrong module is refused by name", of="fine-tunes")
def test_an_adapter_of_another_base_is_refused(made: tuple[Path, Path], checkpoint: Checkpoints) -> None:
    wider = checkpoint("llama", hidden_size=96)
    with pytest.raises(CheckpointError, match=re.escape(str(wider)) + ".*name the base that the adapter was trained on"):
        open_source(made[1], wider)
    with pytest.raises(CheckpointError, match=r"is not a linear module of the base .it has: dense"):
        open_source(made[1], checkpoint("gpt-neox"))


@claim("Pickle files are never loaded", of="checkpoints")
def test_a_pickle_is_never_loaded(folder: Folder, made: tuple[Path, Path]) -> None:
    folder.open(made[0])
    (folder.path / "adapter_model.safetensors").rename(folder.path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin is a pickle, which is never loaded"):
        open_source(folder.path, made[0])
    (folder.path / "adapter_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"has adapter_config.json but no adapter_model.safetensors"):
        open_source(folder.path, made[0])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"base_model_name_or_path": "meta-llama/Llama-3-8B"}', "meta-llama/Llama-3-8B"),
        ('{"base_model_name_or_path": "/home/ann/base/"}', "/home/ann/base/"),
        ('{"config": {}, "model_name": "acme/base"}', "acme/base"),
        ('{"base_model_name_or_path": null}', ""),
        ('{"base_model_name_or_path": 7}', ""),
        ("{", ""),
    ],
)
def test_what_it_was_trained_on_is_reported_as_it_stands(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    assert trained_on(tmp_path) == name
    assert trained_on(tmp_path / "nothing") == ""


@pytest.mark.parametrize(
    ("own", "other", "target"),
    [(2, 5, ["q_proj", "v_proj"]), (5, 2, ["q_proj", "v_proj"]), (2, 5, r".*\.up_proj"), (5, 2, "all-linear")],
)
def test_an_adapter_of_a_deeper_or_flatter_base_is_refused_with_the_reason(
    tmp_path: Path, own: int, other: int, target: Any
) -> None:
    """Not that a tensor is lacking, or that a module is none of the base."""
    its = make_checkpoint(tmp_path / "its", num_hidden_layers=own)
    given = make_checkpoint(tmp_path / "given", num_hidden_layers=other)
    adapter = make_adapter(its, tmp_path / "a", target_modules=target)
    says = (
        f"a was made for another base: it has {own} layers, given has {other}; name the base that the adapter was trained on"
    )
    with pytest.raises(CheckpointError, match=says):
        open_source(adapter, given)
    family = make_family(make_checkpoint(tmp_path / "f", num_hidden_layers=7), tmp_path / "tiers", {other: "shared"})
    with pytest.raises(CheckpointError, match=says.replace("given", f"tiers:{other}")):
        open_adapter(adapter, open_source(family).at_exit(other))
    assert len(open_source(adapter, its).deltas) > 0
    some = make_adapter(given, tmp_path / "some", target_modules=["q_proj"], layers_to_transform=[0])
    assert len(open_source(some, given).deltas) == 1, "fewer layers, as its configuration says"


def test_a_base_of_another_width_is_reported_before_what_is_lacking(tmp_path: Path) -> None:
    its, given = make_checkpoint(tmp_path / "its"), make_checkpoint(tmp_path / "given", hidden_size=96)
    adapter = make_adapter(its, tmp_path / "a", target_modules=["q_proj", "v_proj"])
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["q_proj", "v_proj", "k_proj"]}))
    with pytest.raises(CheckpointError, match=r"has shape .* where .* of the base .* ask for .*; name the base"):
        open_source(adapter, given)


def test_weight_tying_counts_where_it_changes_something(tmp_path: Path) -> None:
    """Trainers set it whatever the adapter changes."""
    for tied in (False, True):
        base = make_checkpoint(tmp_path / f"base-{tied}", tie_word_embeddings=tied)
        for name, more in (("layers", {}), ("head", {"modules_to_save": ["lm_head"]})):
            adapter = make_adapter(base, tmp_path / f"{name}-{tied}", target_modules=["q_proj"], **more)
            file = adapter / "adapter_config.json"
            config = json.loads(file.read_text())
            file.write_text(json.dumps({**config, "ensure_weight_tying": False}))
            plain = [spec.component.id for spec in open_source(adapter, base).specs(16, "float32")]
            file.write_text(json.dumps({**config, "ensure_weight_tying": True}))
            if tied and more:
                with pytest.raises(
                    CheckpointError, match=r"ensure_weight_tying is true and the adapter changes lm_head.weight"
                ):
                    open_source(adapter, base)
            else:
                assert [spec.component.id for spec in open_source(adapter, base).specs(16, "float32")] == plain

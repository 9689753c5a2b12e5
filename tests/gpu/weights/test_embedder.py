"""Files of sentence-transformers: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import HeadConfig
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.embedder import Embedder, Reranker
from blockwright.tests import embedders
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.zoo.add import add
from blockwright.zoo.source import open_source


@pytest.fixture
def made(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    return embedders.make_embedder(checkpoint("qwen3"), tmp_path / "model", "mean")


def change(folder: Path, name: str, **values: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    path = folder / name
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({key: value for key, value in (found | values).items() if value is not None}))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        Checkpoint.open(folder)
    return str(refused.value)


@claim("A checkpoint without head, as `AutoModel` saves it, loads as an embedder", of="embeddings")
def test_a_checkpoint_without_head_is_an_embedder(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Without files that say more, the last token's state is the vector."""
    folder = embedders.make_embedder(checkpoint("qwen3"), tmp_path / "model", bare=True)
    (folder / "modules.json").unlink()
    opened = Checkpoint.open(folder)
    assert opened.pooled == Embedder(width=64)
    assert opened.embeds
    head, refs = opened.parts[-1]
    assert isinstance(head, HeadConfig)
    assert head.vocabulary == 0
    assert refs.keys() == {"norm"}
    with_head = Checkpoint.open(checkpoint("qwen3"))
    assert with_head.pooled is None
    assert [spec.component.id for spec in with_head.specs(8, "float32")[:-1]] == [
        spec.component.id for spec in opened.specs(8, "float32")[:-1]
    ], "it shares all blocks with the model that generates"


def test_what_the_files_say(made: Path) -> None:
    change(
        made,
        "config_sentence_transformers.json",
        prompts={"query": "find: ", "document": ""},
        default_prompt_name="query",
        similarity_fn_name="dot",
    )
    prompts = {"query": "find: ", "document": ""}
    pooled = Checkpoint.open(made).pooled
    assert pooled == Embedder(modes=("mean",), width=64, prompts=prompts, default_prompt="query", similarity="dot")
    assert isinstance(pooled, Embedder)
    assert (pooled.prompt(), pooled.prompt("document"), pooled.prompt("other")) == ("find: ", "", "find: ")
    pooling = made / "1_Pooling"
    change(pooling, "config.json", pooling_mode=["mean", "lasttoken"])
    embedders.write_modules(made, "pooling")
    pooled = Checkpoint.open(made).pooled
    assert isinstance(pooled, Embedder)
    assert (pooled.modes, pooled.width, pooled.normalize) == (("mean", "lasttoken"), 128, False)
    old = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    (pooling / "config.json").write_text(json.dumps(old))
    pooled = Checkpoint.open(made).pooled
    assert isinstance(pooled, Embedder)
    assert pooled.modes == ("cls", "max")


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode is 'median', not one of cls, lasttoken, max"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "pooling_mode is [], not one of"),
        ("1_Pooling/config.json", {"pooling_mode": ["max", "max"]}, "not a list without repetitions"),
        ("1_Pooling/config.json", {"embedding_dimension": 32}, "embedding_dimension is 32, not 64, the hidden_size"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is false, which is not supported"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is true, which is not supported"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts is {'a': 1}, not an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "default_prompt_name is 'q', not one of the"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "x"}, "similarity_fn_name is 'x', not one of cosine"),
        ("exits.json", {"version": 1, "exits": [{"layers": 1, "head": "shared"}]}, "is an embedder, which has no exits"),
    ],
)
def test_what_would_change_a_vector_is_refused(made: Path, file: str, values: dict[str, Any], said: str) -> None:
    change(made, file, **values)
    assert said in refusal(made)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([], "begins with nothing"),
        ({}, "not a list of at most 64 modules"),
        ([{"type": "a.Transformer", "path": "0_Transformer"}], "must be a Transformer in the folder itself"),
        ([{"type": "a.Transformer", "path": "../other"}], "path is '../other', not a folder within the model's"),
        ([{"type": "a.Transformer", "path": "", "config": 3}], "config is 3, not an object"),
        ([{"type": "a.Transformer"}], "there must be one Pooling, and Normalize only behind it"),
        ([{"type": "a.Transformer"}, {"type": "a.Pooling"}, {"type": "a.Dense"}], "the module Dense is not supported"),
        ([{"type": "a.Transformer"}, {"type": "a.Normalize"}, {"type": "a.Pooling"}], "Normalize only behind it"),
        ([3], "not a list of at most 64 modules"),
    ],
)
def test_modules_that_are_not_done(made: Path, listed: Any, said: str) -> None:
    (made / "modules.json").write_text(json.dumps(listed))
    assert said in refusal(made)


def test_broken_files_are_named(made: Path) -> None:
    (made / "modules.json").write_text("[")
    assert "modules.json cannot be read" in refusal(made)


def test_rerankers(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = embedders.make_reranker(
        checkpoint("qwen3"), tmp_path / "a", 5, 9, prompts={"q": "which"}, default_prompt_name="q"
    )
    opened = Checkpoint.open(folder)
    assert opened.pooled == Reranker(yes=5, no=9, instruction="which")
    assert not opened.embeds
    change(folder, "1_LogitScore/config.json", false_token_id=None)
    change(folder, "config_sentence_transformers.json", activation_fn="torch.nn.modules.linear.Identity")
    assert Checkpoint.open(folder).pooled == Reranker(yes=5, no=-1, instruction="which", sigmoid=False)
    change(folder, "1_LogitScore/config.json", true_token_id=384)
    assert "true_token_id is 384, not a token id below 384" in refusal(folder)
    change(folder, "1_LogitScore/config.json", true_token_id=3)
    change(folder, "config_sentence_transformers.json", activation_fn="torch.nn.Tanh")
    assert "activation_fn is 'torch.nn.Tanh', not Sigmoid or Identity" in refusal(folder)
    (folder / "modules.json").unlink()
    change(folder, "config.json", classifier_from_token=["no", "yes"])
    assert Checkpoint.open(folder).pooled == Reranker(yes="yes", no="no")
    change(folder, "config.json", classifier_from_token=["no"])
    assert "classifier_from_token is ['no'], not a list of two tokens" in refusal(folder)


def test_adapters_over_an_embedder(checkpoint: Callable[..., Path], made: Path, tmp_path: Path) -> None:
    base = Checkpoint.open(made)
    adapter = make_adapter(checkpoint("qwen3"), tmp_path / "lora", target_modules=["q_proj", "down_proj"])
    opened = open_adapter(adapter, base)
    assert (opened.embeds, opened.pooled, len(opened.deltas)) == (True, base.pooled, 6)
    change(adapter, "adapter_config.json", task_type="FEATURE_EXTRACTION")
    assert open_adapter(adapter, base).deltas.keys() == opened.deltas.keys()
    bare = embedders.make_adapter(made, tmp_path / "bare", target_modules=["q_proj", "down_proj"])
    assert open_adapter(bare, base).deltas.keys() == opened.deltas.keys(), "its names lack the first part"
    with pytest.raises(CheckpointError, match="task_type is 'FEATURE_EXTRACTION', not CAUSAL_LM: only an embedder"):
        open_adapter(adapter, Checkpoint.open(checkpoint("qwen3")))
    embedders.write_modules(adapter, "pooling", pooling={"pooling_mode": "lasttoken"})
    own = open_adapter(adapter, base).pooled
    assert isinstance(own, Embedder)
    assert (own.modes, own.normalize) == (("lasttoken",), False)
    change(adapter, "adapter_config.json", task_type="CAUSAL_LM")
    with pytest.raises(CheckpointError, match="it is an embedder, but its base generates"):
        open_adapter(adapter, Checkpoint.open(checkpoint("qwen3")))
    virtual = make_adapter(checkpoint("qwen3"), tmp_path / "prompt", kind="PromptTuningConfig", num_virtual_tokens=3)
    with pytest.raises(CheckpointError, match="virtual tokens before a text, which is not supported over an embedder"):
        open_adapter(virtual, base)


def test_a_zoo_keeps_what_an_embedder_says(made: Path, tmp_path: Path) -> None:
    change(made, "config_sentence_transformers.json", prompts={"query": "find: "}, similarity_fn_name="euclidean")
    add(tmp_path / "zoo", str(made), "embedder")
    opened = open_source(tmp_path / "zoo" / "chains" / "embedder")
    before = Checkpoint.open(made)
    assert opened.pooled == before.pooled
    assert [spec.component for spec in opened.specs(8, "float32")] == [spec.component for spec in before.specs(8, "float32")]

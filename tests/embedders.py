"""Random embedders and rerankers, and what transformers computes with them: the judge of vectors and scores.

Import as ``blockwright.tests.embedders``. Files are written as sentence-transformers saves them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MODULES = {
    "transformer": ("", "sentence_transformers.base.modules.transformer.Transformer"),
    "pooling": ("1_Pooling", "sentence_transformers.models.Pooling"),
    "normalize": ("2_Normalize", "sentence_transformers.models.Normalize"),
    "dense": ("2_Dense", "sentence_transformers.models.Dense"),
    "score": ("1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"),
}
PAIR_TEMPLATE = (
    "judge {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('all') }}\n"
    "q {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "d {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}\nsay"
)


def write_modules(folder: Path, *kinds: str, pooling: dict[str, Any] | None = None, **settings: Any) -> Path:
    """Write modules.json for these kinds behind the Transformer, the Pooling's configuration, and the settings."""
    listed = []
    for place, kind in enumerate(("transformer", *kinds)):
        path, name = MODULES[kind]
        listed.append({"idx": place, "name": str(place), "path": path, "type": name})
    (folder / "modules.json").write_text(json.dumps(listed))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if settings:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def make_embedder(
    base: Path,
    target: Path,
    mode: str | list[str] = "lasttoken",
    *,
    normalize: bool = True,
    bare: bool = False,
    **settings: Any,
) -> Path:
    """Make an embedder from a checkpoint. ``bare``: saved by the class without head, as ``AutoModel`` does."""
    if bare:
        model = base_model(base)
        model.save_pretrained(target)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(base / name, target / name)
    else:
        shutil.copytree(base, target)
    width = json.loads((target / "config.json").read_text())["hidden_size"]
    kinds = ("pooling", "normalize") if normalize else ("pooling",)
    return write_modules(target, *kinds, pooling={"embedding_dimension": width, "pooling_mode": mode}, **settings)


def make_reranker(
    base: Path, target: Path, yes: int = 5, no: int = 9, template: str = PAIR_TEMPLATE, **settings: Any
) -> Path:
    """Make a reranker from a checkpoint: the score is the difference of two logits at the last position."""
    shutil.copytree(base, target)
    write_modules(target, "score", **settings)
    (target / "1_LogitScore").mkdir()
    (target / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": yes, "false_token_id": no}))
    if template:
        (target / "chat_template.jinja").write_text(template)
    return target


def base_model(folder: Path) -> Any:
    """The transformers model without its head, in float32 and evaluation mode."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder, dtype="float32").eval()


def states(model: Any, prompt: Sequence[int]) -> np.ndarray:
    """Float64 states [T, D] behind the last norm."""
    import torch

    with torch.no_grad():
        found = model(input_ids=torch.tensor([list(prompt)])).last_hidden_state[0]
    return np.asarray(found.double().numpy())


def pooled(state_TD: np.ndarray, modes: Sequence[str], *, normalize: bool = True, dimensions: int = 0) -> np.ndarray:
    """The vector of these states, by the formulas of sentence-transformers."""
    count = len(state_TD)
    weight_T = np.arange(1, count + 1)[:, None]
    ways = {
        "cls": lambda: state_TD[0],
        "lasttoken": lambda: state_TD[-1],
        "max": lambda: state_TD.max(0),
        "mean": lambda: state_TD.mean(0),
        "mean_sqrt_len_tokens": lambda: state_TD.sum(0) / np.sqrt(count),
        "weightedmean": lambda: (state_TD * weight_T).sum(0) / weight_T.sum(),
    }
    vector = np.concatenate([ways[mode]() for mode in modes])
    vector = vector[:dimensions] if dimensions else vector
    return vector / np.linalg.norm(vector) if normalize else vector


def make_adapter(base: Path, folder: Path, seed: int = 0, **config: Any) -> Path:
    """A LoRA of the model without its head, as peft saves it for embedders: names lack the first part."""
    import peft
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of transformers
        torch.manual_seed(seed)
        usual = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "FEATURE_EXTRACTION"}
        model = peft.get_peft_model(base_model(base), peft.LoraConfig(**{**usual, **config}))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(folder)
    return folder


def adapted_model(base: Path, adapter: Path) -> Any:
    """The model without its head, with an adapter, as peft loads it."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(base_model(base), adapter).eval()


def verdict(folder: Path, prompt: Sequence[int], yes: int, no: int) -> float:
    """The softmax over two logits of the last position."""
    import torch

    from blockwright.tests.gpu import reference

    return float(torch.softmax(reference.logits(folder, list(prompt))[-1][[no, yes]].double(), 0)[1])

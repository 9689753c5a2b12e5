"""Prompt tuning and prefix tuning as PEFT saves them: virtual tokens at the positions before the prompt.

PEFT saves the result of a reparametrisation (``prefix_projection``), not the network behind it. So one tensor,
``prompt_embeddings``, is all there is: rows of virtual tokens, each an embedding, or key and value of every layer in turn.
Standard library only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import CheckpointError
from ..model.config import EmbeddingConfig, TensorRef, attention_of
from ..model.deltas import DeltaConfig
from ..model.fields import Fields, named, shown
from ..model.registry import ARCHITECTURES
from .checkpoint import Checkpoint, DeltaPart

TENSOR = "prompt_embeddings"
FORMS = ("PROMPT_TUNING", "PREFIX_TUNING")
# Fields that describe the training, or that do not affect the answers.
IGNORED = frozenset(
    {
        "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "init_weights",
        "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs", "encoder_hidden_size",
        "prefix_projection",
    }
)  # fmt: skip
READ = frozenset(
    {"task_type", "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads", "num_layers"}
)
BASE = "name the base that the adapter was trained on"


def read_virtual_tokens(
    file: Path, fields: Fields, form: str, tensors: dict[str, TensorRef], base: Checkpoint
) -> dict[int, DeltaPart]:
    """Return the deltas by place in the chain. ``tensors`` are the ones of ``file``. Raises CheckpointError."""
    _check_fields(fields)
    model, virtual = base.config, fields.integer("num_virtual_tokens")
    if virtual >= model.max_position:
        raise CheckpointError(
            f"{fields.source}: num_virtual_tokens is {virtual}, but {base.path} has {model.max_position} positions; {BASE}"
        )
    prefix = form == "PREFIX_TUNING"
    heads, width = (model.kv_heads, model.kv_heads * model.head_dim) if prefix else (model.heads, model.hidden)
    for key, wanted in (("num_layers", model.layers), ("num_attention_heads", heads), ("token_dim", width)):
        if (found := fields.integer(key, wanted)) != wanted:
            raise CheckpointError(f"{fields.source}: {key} is {found}, but the base {base.path} asks for {wanted}; {BASE}")
    ref = _tensor(file, tensors)
    shape = (virtual, 2 * model.layers * width if prefix else width)
    if ref.shape != shape:
        raise CheckpointError(
            f"{file}: tensor {TENSOR} has shape {list(ref.shape)} where num_virtual_tokens {virtual} and the base "
            f"{base.path} ask for {list(shape)}; {BASE}, or correct num_virtual_tokens"
        )
    if not prefix:
        first = base.parts[0][0]
        assert isinstance(first, EmbeddingConfig), "a chain begins with an embedding"
        factor = first.multiplier if ARCHITECTURES[model.architecture].scales_inputs else 1.0
        return {0: (DeltaConfig(prompt=virtual, prompt_factor=factor), {"prompt": ref})}
    places = [place for place, (config, _) in enumerate(base.parts) if attention_of(config) is not None]
    return {
        place: (DeltaConfig(prefix=virtual), {"prefix": _columns(ref, layer, len(places))})
        for layer, place in enumerate(places)
    }


def _check_fields(fields: Fields) -> None:
    for key, value in fields.values.items():
        if key not in IGNORED and key not in READ and value not in (None, False, [], {}, ""):
            raise CheckpointError(
                f"{fields.source}: {named(key)} is {shown(value)}, which is not supported; train the adapter without it"
            )
    if fields.text("task_type", "CAUSAL_LM") != "CAUSAL_LM":
        raise fields.wrong("task_type", "CAUSAL_LM: only models that generate are served")
    if fields.integer("num_transformer_submodules", 1) != 1:
        raise fields.wrong("num_transformer_submodules", "1: no encoder with a decoder is served")


def _tensor(file: Path, tensors: dict[str, TensorRef]) -> TensorRef:
    if other := sorted(tensors.keys() - {TENSOR}):
        raise CheckpointError(
            f"{file}: tensor {named(other[0])} is not supported, only {TENSOR} is; save the adapter with save_pretrained()"
        )
    if TENSOR not in tensors:
        raise CheckpointError(f"{file} lacks tensor {TENSOR}; save the adapter with save_pretrained()")
    return tensors[TENSOR]


def _columns(ref: TensorRef, layer: int, layers: int) -> TensorRef:
    """Return the key and value of one layer, for every row."""
    row = ref.nbytes // ref.shape[0]
    part = row // layers
    return replace(
        ref,
        shape=(ref.shape[0], ref.shape[1] // layers),
        offset=ref.offset + layer * part,
        nbytes=ref.shape[0] * part,
        stretch=part,
        step=row,
    )

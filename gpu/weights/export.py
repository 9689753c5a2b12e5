"""Export of a tier: an ordinary checkpoint folder with the first layers of a family and the head of one exit.

Legend of tensors: none here; every tensor is copied as it is stored, and fused ones are put together again.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..errors import CheckpointError
from ..model.config import TensorRef
from ..model.fields import Fields
from ..model.parts import Source
from ..regular_file import read_regular
from .checkpoint import Checkpoint
from .checkpoint_files import LONGEST_TEXT, OF_FRONT
from .loader import read_rows
from .tensor_files import SINGLE

CONFIG = "config.json"
# Files that transformers reads beside the weights; what serving reads is among them.
TEXTS = (*OF_FRONT, "chat_template.json", "merges.txt", "vocab.json", "tokenizer.model")


def export(tier: Checkpoint, out: Path) -> Path:
    """Write a tier as a checkpoint of its own into the new folder ``out``, and return that folder.

    ``out`` appears when it is complete. Raises CheckpointError, and OSError if it cannot be written.
    """
    if os.path.lexists(out):
        raise CheckpointError(f"{out} is there already; name a folder that is not")
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    beside.mkdir(parents=True)
    try:
        for name in TEXTS:
            if name != CONFIG and (tier.path / name).is_file():
                (beside / name).write_bytes(read_regular(tier.path / name, LONGEST_TEXT))
        text = json.dumps(_config(tier), indent=1, ensure_ascii=False) + "\n"
        (beside / CONFIG).write_text(text, encoding="utf-8")
        save_file(tensors_by_name(tier), beside / SINGLE, metadata={"format": "pt"})
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return out


def _config(tier: Checkpoint) -> dict[str, Any]:
    """Return config.json with the tier's layers."""
    values = dict(Fields.read(tier.path / CONFIG).values)
    if isinstance(types := values.get("layer_types"), list):
        values["layer_types"] = types[: tier.tier]
    return values | {"num_hidden_layers": tier.config.layers, "tie_word_embeddings": tier.config.tied}


def tensors_by_name(tier: Checkpoint) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint as it is stored, under the name that transformers reads."""
    fused: dict[str, list[tuple[Source, TensorRef]]] = {}
    for (_, refs), (_, roles) in zip(tier.parts, tier.chain, strict=True):
        for role, source in roles.items():
            fused.setdefault(source.name, []).append((source, refs[role]))
    if tier.config.tied:  # stored once, under the embedding's name
        fused.pop(next(source.name for role, source in tier.chain[-1][1].items() if role == "weight"))
    return {name: _whole(rows) for name, rows in fused.items()}


def _whole(rows: list[tuple[Source, TensorRef]]) -> torch.Tensor:
    """Return one tensor of a file from the rows of each of its roles."""
    if rows[0][0].rows is None:
        return _content(rows[0][1])
    total = sum(ref.shape[0] for _, ref in rows)
    found: torch.Tensor | None = None
    for source, ref in rows:
        assert source.rows is not None, "all roles of a fused tensor are rows of it"
        first, count, period = source.rows
        content = _content(ref)
        found = torch.empty((total, *ref.shape[1:]), dtype=content.dtype) if found is None else found
        periods = found.view(total // period, period, *ref.shape[1:])
        periods[:, first : first + count] = content.view(-1, count, *ref.shape[1:])
    assert found is not None, "a tensor has a role"
    return found


def _content(ref: TensorRef) -> torch.Tensor:
    return read_rows(ref, 0, ref.shape[0]).contiguous()

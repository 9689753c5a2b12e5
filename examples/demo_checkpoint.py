"""Writer of a trained demo checkpoint: the weights and the report. The package makes tokenizer and configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blockwright.api.demo.checkpoint import write_texts


def write_folder(folder: Path, shape: dict[str, Any], weights: dict[str, torch.Tensor], report: dict[str, Any]) -> None:
    """Writes all files; ``weights`` have the names of transformers without their leading ``model.``."""
    write_texts(folder, shape, "bfloat16")
    tensors = {f"model.{name}": weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")

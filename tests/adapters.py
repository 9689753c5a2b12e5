"""Random adapters made with peft, and what peft answers with them: the judge of served deltas.

Import as ``blockwright.tests.adapters``. Tensors are drawn, so that every term shows in the tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def base_model(base: Path) -> Any:
    """The transformers model of a checkpoint, in float32 and evaluation mode."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()


def make_adapter(
    base: Path, folder: Path, seed: int = 0, spread: float = 0.2, kind: str = "LoraConfig", **config: Any
) -> Path:
    """A PEFT folder for a checkpoint; ``config`` are fields of the configuration class ``kind``."""
    import peft
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of transformers
        torch.manual_seed(seed)
        usual = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} if kind == "LoraConfig" else {}
        settings = getattr(peft, kind)(**{"task_type": "CAUSAL_LM", **usual, **config})
        model = peft.get_peft_model(base_model(base), settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name or "beft_" in name or (parameter.requires_grad and name.endswith("bias")):
                    parameter.copy_(spread * torch.randn_like(parameter))
                elif "modules_to_save" in name:
                    parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(folder)
    return folder


def peft_model(base: Path, folder: Path) -> Any:
    """The base with an adapter, as peft loads it."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(base_model(base), folder).eval()


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """``count`` tokens, the likeliest each time, whatever ends an answer."""
    import torch

    tokens = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None
    out = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    found: list[int] = out[0, tokens.shape[1] :].tolist()
    return found

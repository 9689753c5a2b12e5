"""Random adapters made with peft, and what peft answers with them: the judge of served deltas.

Import as ``blockwright.tests.adapters``. Tensors are drawn, so that every term shows in the tokens.
"""

from __future__ import annotations

import json
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
                trained = parameter.requires_grad and name.endswith(("bias", "prompt_encoder.default.embedding.weight"))
                if "lora_" in name or "beft_" in name or trained:
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of what it passes itself
        out = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    found: list[int] = out[0, tokens.shape[1] :].tolist()
    return found


def confirm(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """AssertionError unless ``tokens`` are the model's greedy answer, judged in one pass over both: as long as each token is
    the likeliest after those before it, they are what it would generate."""
    import torch

    from blockwright.tests.gpu.reference import compared

    whole = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of what it passes itself
        scores = model(input_ids=whole, attention_mask=torch.ones_like(whole)).logits[0, -len(tokens) - 1 : -1]
    assert compared(scores, tokens) == len(tokens), "two tokens are too close to be distinguished"


BOTTLENECK: dict[str, Any] = {  # the library's defaults for Pfeiffer's kind, as it saves them
    "architecture": None, "mh_adapter": False, "output_adapter": True, "reduction_factor": 16, "non_linearity": "relu",
    "original_ln_before": True, "original_ln_after": True, "ln_before": False, "ln_after": False, "init_weights": "bert",
    "is_parallel": False, "scaling": 1.0, "use_gating": False, "residual_before_ln": True, "inv_adapter": None,
    "adapter_residual_before_ln": False, "inv_adapter_reduction_factor": None, "cross_adapter": False, "leave_out": [],
    "dropout": 0.0, "phm_layer": False, "phm_dim": 4, "factorized_phm_W": True, "shared_W_phm": False, "phm_rank": 1,
    "shared_phm_rule": True, "factorized_phm_rule": False, "phm_c_init": "normal", "phm_init_range": 0.0001,
    "learn_phm": True, "hypercomplex_nonlinearity": "glorot-uniform", "phm_bias": True, "stochastic_depth": 0.0,
}  # fmt: skip


def make_bottleneck(base: Path, folder: Path, seed: int = 0, spread: float = 0.2, **config: Any) -> Path:
    """A folder of bottleneck adapters as AdapterHub's library saves it; ``config`` are fields of its ``BnConfig``."""
    import torch
    from safetensors.torch import save_file

    model, settings = json.loads((base / "config.json").read_text()), {**BOTTLENECK, **config}
    hidden = model["hidden_size"]
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for where, flag in (("attention", "mh_adapter"), ("output", "output_adapter")):
            if not settings[flag] or layer in settings["leave_out"]:
                continue
            factor = settings["reduction_factor"]
            width = int(
                hidden // (factor if not isinstance(factor, dict) else factor.get(str(layer), factor.get("default")))
            )
            name = f"model.layers.{layer}.{where}_adapters.adapters.task"
            for module, shape in (("adapter_down.0", (width, hidden)), ("adapter_up", (hidden, width))):
                tensors[f"{name}.{module}.weight"] = spread * torch.randn(shape, generator=chance)
                tensors[f"{name}.{module}.bias"] = spread * torch.randn(shape[0], generator=chance)
    folder.mkdir(parents=True)
    about = {"hidden_size": hidden, "model_type": model["model_type"], "name": "task", "version": "adapters.1.2.0"}
    (folder / "adapter_config.json").write_text(json.dumps({"config": settings, **about}))
    save_file(tensors, folder / "adapter.safetensors")
    return folder


def bottleneck_model(base: Path, folder: Path) -> Any:
    """The base with bottlenecks behind its modules: what the library computes, written out in torch."""
    from safetensors.torch import load_file

    model, tensors = base_model(base), load_file(folder / "adapter.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())["config"]
    for i, layer in enumerate(model.model.layers):
        for where, module, norm in (
            ("attention", layer.self_attn, layer.input_layernorm),
            ("output", layer.mlp, getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)),
        ):
            name = f"model.layers.{i}.{where}_adapters.adapters.task"
            if f"{name}.adapter_up.weight" in tensors:
                parts = [tensors[f"{name}.{p}.{k}"] for p in ("adapter_down.0", "adapter_up") for k in ("weight", "bias")]
                _insert(module, norm, config, parts)
    return model


def _insert(module: Any, norm: Any, config: dict[str, Any], parts: list[Any]) -> None:
    from torch.nn.functional import linear
    from transformers.activations import get_activation

    residual: list[Any] = []
    down, down_bias, up, up_bias = parts

    def remember(_: Any, inputs: tuple[Any, ...]) -> None:
        residual[:] = inputs[:1]

    def adapt(_: Any, __: Any, output: Any) -> Any:
        y = output[0] if isinstance(output, tuple) else output
        x = residual[0] if config["is_parallel"] else y + residual[0] if config["original_ln_before"] else y
        y = y + config["scaling"] * linear(get_activation(config["non_linearity"])(linear(x, down, down_bias)), up, up_bias)
        return (y, *output[1:]) if isinstance(output, tuple) else y

    norm.register_forward_pre_hook(remember)
    module.register_forward_hook(adapt)

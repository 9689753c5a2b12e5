"""Random models of every served family, for judging arithmetic; a number and a seed determine a model completely.

Everything that changes the order or the size of sums varies: layers, widths, heads, head sizes, windows, biases, the spread
of the weights, and prompts of 1 to 1,300 tokens with tokens decoded after them. Only the given folder is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 128
SPREADS = (0.02, 0.2)  # initializer_range
DECODED = (4, 16)  # tokens that follow each prompt, fewest and most
LONGEST = 1300
WIDTHS = (48, 64, 96, 128, 192, 256)
Draw = random.Random
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """``tokens[:given]`` is the prompt; the others are forced, one by one."""

    tokens: tuple[int, ...]
    given: int


@dataclass(frozen=True, slots=True)
class RandomModel:
    """``config`` is of transformers' ``family``."""

    number: int
    seed: int
    name: str
    family: str
    spread: float
    config: Config
    prompts: tuple[Prompt, ...]

    @property
    def max_length(self) -> int:
        return max(len(prompt.tokens) for prompt in self.prompts)

    def __str__(self) -> str:
        keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        sizes = "/".join(str(self.config[key]) for key in keys if key in self.config)
        return f"{self.number} {self.name} range {self.spread} sizes {sizes} prompts {[p.given for p in self.prompts]}"


def _plain(draw: Draw) -> Config:
    """Widths, heads and layers of a family that lets ``head_dim`` be anything even."""
    kv_heads = draw.choice((1, 2, 3, 4))
    heads = kv_heads * draw.choice((1, 2, 4))
    return {
        "num_hidden_layers": draw.randint(2, 8),
        "hidden_size": draw.choice([width for width in WIDTHS if width % heads == 0]),
        "intermediate_size": draw.choice((80, 112, 176, 256, 300, 512)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": heads,
        "head_dim": draw.choice((8, 10, 16, 24, 32, 64, 80, 128)),
    }


def _by_width(draw: Draw, head_dims: tuple[int, ...] = (8, 16, 24, 32, 64)) -> Config:
    """The same where ``hidden_size`` is heads times head size."""
    config = _plain(draw)
    head_dim = draw.choice(head_dims)
    del config["head_dim"]
    heads = max(
        config["num_attention_heads"], -(-48 // head_dim // config["num_key_value_heads"]) * config["num_key_value_heads"]
    )
    return config | {"num_attention_heads": heads, "hidden_size": heads * head_dim}


def _window(draw: Draw) -> int:
    return draw.choice((11, 48, 101, 300, 650))


def _llama(draw: Draw) -> Config:
    biases = {"attention_bias": True, "mlp_bias": True} if draw.random() < 0.3 else {}
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "factor": 8.0}
    rope = draw.choice(({"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "llama3", **llama3}))
    return (
        _plain(draw)
        | biases
        | {"tie_word_embeddings": draw.random() < 0.3, "rope_parameters": {"rope_theta": 10000.0, **rope}}
    )


def _phi3(draw: Draw) -> Config:
    """Some with a scaled rotary embedding whose lengths are never exceeded."""
    config = _by_width(draw) | {"sliding_window": draw.choice((None, _window(draw))), "pad_token_id": 0}
    if draw.random() < 0.7:
        return config
    turned = config["hidden_size"] // config["num_attention_heads"] // 2
    factors = {"short_factor": [1.0 + 0.25 * place for place in range(turned)], "long_factor": [4.0] * turned}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    return config | {
        "rope_parameters": rope,
        "original_max_position_embeddings": 2048,
        "max_position_embeddings": 8192,
    }


def _gemma2(draw: Draw) -> Config:
    caps = draw.choice(((50.0, 30.0), (3.0, 4.0), (None, None)))
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    config = _plain(draw)
    scalar = draw.choice((config["head_dim"], 24, 224))
    return config | dict(zip(keys, caps, strict=True)) | {"sliding_window": _window(draw), "query_pre_attn_scalar": scalar}


def _gpt_neox(draw: Draw) -> Config:
    config = _by_width(draw)
    del config["num_key_value_heads"]
    rotary = draw.choice((0.25, 0.5, 1.0))
    return config | {
        "hidden_act": draw.choice(("gelu", "gelu_new", "gelu_fast")),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rotary},
    }


def _granite(draw: Draw) -> Config:
    return _by_width(draw) | {
        "embedding_multiplier": draw.choice((1.0, 5.3, 12.0)),
        "attention_multiplier": draw.choice((0.05, 0.2)),
        "residual_multiplier": draw.choice((0.22, 0.4, 1.0)),
        "logits_scaling": draw.choice((1.0, 3.0)),
    }


FAMILIES: dict[str, tuple[str, Callable[[Draw], Config]]] = {
    "llama": ("llama", _llama),
    "mistral": ("mistral", lambda draw: _plain(draw) | {"sliding_window": draw.choice((None, _window(draw)))}),
    "qwen2": ("qwen2", _by_width),
    "qwen3": ("qwen3", _plain),
    "gemma": ("gemma", _plain),
    "gemma2": ("gemma2", _gemma2),
    "phi3": (
        "phi3",
        lambda draw: _by_width(draw) | {"sliding_window": draw.choice((None, _window(draw))), "pad_token_id": 0},
    ),
    "gpt-neox": ("gpt_neox", _gpt_neox),
    "gpt-neox-serial": ("gpt_neox", lambda draw: _gpt_neox(draw) | {"use_parallel_residual": False}),
    "glm": ("glm", lambda draw: _plain(draw) | {"head_dim": draw.choice((8, 16, 32, 64, 128)), "pad_token_id": 0}),
    "glm4": ("glm4", lambda draw: _plain(draw) | {"head_dim": draw.choice((8, 16, 32, 64, 128)), "pad_token_id": 0}),
    "olmo2": ("olmo2", _by_width),
    "granite": ("granite", _granite),
}


def drawn(number: int, seed: int = 0, longest: int = LONGEST) -> RandomModel:
    """Model ``number``: families take turns, each with both spreads in turn."""
    draw = Draw(f"accuracy/{seed}/{number}")
    name = list(FAMILIES)[number % len(FAMILIES)]
    family, config_of = FAMILIES[name]
    spread = SPREADS[number // len(FAMILIES) % len(SPREADS)]
    config = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "initializer_range": spread,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        **config_of(draw),
    }
    bounds = [(1, 16), (17, 300)] + [(301, LONGEST)] * (draw.random() < 0.5)
    given = [min(longest, draw.randint(*bound)) for bound in bounds]
    prompts = [
        Prompt(tuple(draw.randrange(3, VOCABULARY) for _ in range(length + draw.randint(*DECODED))), length)
        for length in given
    ]
    return RandomModel(number, seed, name, family, spread, config, tuple(prompts))


def quiet_transformers() -> Any:
    """The package, without its progress bars."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def write(model: RandomModel, folder: Path) -> Path:
    """Its checkpoint in bfloat16. Norms and biases are random too, around what changes nothing."""
    transformers = quiet_transformers()
    settings = transformers.AutoConfig.for_model(model.family, **model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000_003 * model.seed + model.number)
        built = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in built.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.add_(model.spread * torch.randn_like(parameter))
                elif name.endswith("bias"):
                    parameter.copy_(model.spread * torch.randn_like(parameter))
    built = built.to(torch.bfloat16)
    built.config.dtype = torch.bfloat16
    built.save_pretrained(folder)
    return folder

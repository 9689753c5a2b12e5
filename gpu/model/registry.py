"""The architectures that can be served, by the names that config.json gives them. A new family adds a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model import llama
from blockwright.gpu.model.config import ComponentConfig, ModelConfig
from blockwright.gpu.model.fields import Fields


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read one architecture: ``read(name, config, stored dtype)``, then the chain that follows from it."""

    read: Callable[[str, Fields, str], ModelConfig]
    components: Callable[[ModelConfig], list[tuple[ComponentConfig, llama.Roles]]]
    embedding: str  # tensor that a tied head uses
    head: str


def _kin(family: llama.Family) -> Architecture:
    return Architecture(partial(llama.read_config, family), llama.components, "model.embed_tokens.weight", "lm_head.weight")


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _kin(llama.LLAMA),
    "LLaMAForCausalLM": _kin(llama.LLAMA),  # spelling of the first conversions
    "MistralForCausalLM": _kin(llama.MISTRAL),
    "Qwen2ForCausalLM": _kin(llama.QWEN2),
}
MODEL_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def find(config: Fields) -> tuple[str, Architecture]:
    """The architecture that config.json names (``architectures``, else ``model_type``); else a ``CheckpointError``."""
    names = config.values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise config.wrong("architectures", "a list of names")
    model_type = config.text("model_type")
    if not names and model_type in MODEL_TYPES:
        names = [MODEL_TYPES[model_type]]
    for name in names:
        if name in ARCHITECTURES:
            return name, ARCHITECTURES[name]
    shown = ", ".join(names) or model_type or "no architecture"
    raise CheckpointError(
        f"{config.source} names {shown}, which is not supported (there are: {', '.join(ARCHITECTURES)}); "
        "use a checkpoint of one of these"
    )

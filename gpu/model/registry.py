"""Registry of the architectures that can be served, by their names in config.json. A new one adds a line to ``FAMILIES``."""

from __future__ import annotations

from importlib import import_module

from ..errors import CheckpointError
from .fields import Fields, named
from .parts import Architecture

# Modules. Each has ARCHITECTURES, and no other public name.
FAMILIES = (
    "blockwright.gpu.model.llama",
    "blockwright.gpu.model.gemma",
    "blockwright.gpu.model.gemma2",
    "blockwright.gpu.model.glm",
    "blockwright.gpu.model.gpt_neox",
    "blockwright.gpu.model.granite",
    "blockwright.gpu.model.olmo2",
    "blockwright.gpu.model.phi3",
    "blockwright.gpu.model.qwen3",
)
ARCHITECTURES: dict[str, Architecture] = {}


def register(module: str) -> None:
    """Add the architectures of a module, given by its dotted name."""
    found: tuple[Architecture, ...] = import_module(module).ARCHITECTURES
    ARCHITECTURES.update({architecture.name: architecture for architecture in found})


for _family in FAMILIES:
    register(_family)


def find(config: Fields) -> Architecture:
    """Return the architecture that config.json names (``architectures``, or ``model_type``). Raises ``CheckpointError``."""
    names = config.values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise config.wrong("architectures", "a list of names")
    model_type = config.text("model_type")
    if not names:
        names = [name for name, known in ARCHITECTURES.items() if known.model_type == model_type][:1]
    for name in names:
        whole = f"{name.removesuffix('Model')}ForCausalLM"  # the class of a model without its head
        if (found := ARCHITECTURES.get(name) or ARCHITECTURES.get(whole)) is not None:
            return found
    if not (asked := ", ".join(names) or model_type):
        raise CheckpointError(
            f"{config.source} names no architecture; give architectures or model_type, as transformers writes it"
        )
    raise CheckpointError(
        f"{config.source} names {named(asked)}, which is not supported (there are: {', '.join(ARCHITECTURES)}); "
        "use a checkpoint of one of these"
    )

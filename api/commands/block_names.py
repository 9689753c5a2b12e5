"""Names of the components and blocks of a chain, by layers that are counted from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...policies.model.chain import Component

NAMES = {"attention": "attention", "mlp": "feed-forward", "parallel": "layer"}  # of components of a layer


def component_names(chain: Sequence[Component]) -> list[str]:
    """Return the names of a chain's components; layers are counted from 0."""
    names, layer = [], -1
    for one in chain:
        layer += one.kind.value in ("attention", "parallel")
        names.append(f"{NAMES[one.kind.value]} {layer}" if one.kind.value in NAMES else one.kind.value)
    return names


def block_name(names: Sequence[str], first: int, last: int) -> str:
    """Return the name of a block: of its only component, or of its layers and what lies around them."""
    if last - first == 1:
        return names[first]
    layers = [int(name.rpartition(" ")[2]) for name in names[first:last] if " " in name]
    said = f"layer {layers[0]}" if layers[0] == layers[-1] else f"layers {layers[0]}-{layers[-1]}"
    ends = [f"from the {names[first]}"] if " " not in names[first] else []
    ends += [f"to the {names[last - 1]}"] if " " not in names[last - 1] else []
    return f"{said}, {' '.join(ends)}" if ends else said

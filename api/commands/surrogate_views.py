"""Surrogates of blocks as plain data, sentences and tables (``docs/schemas/``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...policies.binary_size import binary_size
from .block_names import block_name, component_names
from .output import FittedTable

if TYPE_CHECKING:
    from ...policies.model.chain import Component
    from ...zoo.surrogate.records import StoredSurrogate


def surrogate_view(made: StoredSurrogate, name: str, chain: Sequence[Component]) -> dict[str, Any]:
    """Return a surrogate of a block of an application as plain data."""
    first, last = made.place([one.id.hex() for one in chain]) or (0, 0)
    return {
        "application": name,
        "name": block_name(component_names(chain), first, last),
        "first": first,
        "last": last,
        "made": made.made,
        "components": list(made.surrogate),
        "similarity": made.similarity,
        "low": made.low,
        "kl": made.kl,
        "agreement": made.agreement,
        "tokens": made.tokens,
        "block_bytes": made.block_bytes,
        "bytes": made.nbytes,
        "block_seconds": made.block_seconds,
        "seconds": made.seconds,
        "numerics": made.numerics,
        "threads": made.threads,
    }


def surrogate_line(view: Mapping[str, Any]) -> str:
    how = {
        "pruned": "half of the heads and columns removed, the rest repaired",
        "equivalent": "an equivalent smaller block",
    }[view["made"]]
    first, last = view["first"], view["last"] - 1
    places = f"components {first}-{last}" if last > first else f"component {first}"
    return f"{view['name']} of {view['application']} ({places}): {how}"


def surrogate_table(view: Mapping[str, Any]) -> FittedTable:
    """Return sizes and times of the block and of its surrogate."""
    rows = [
        ("size", binary_size(view["block_bytes"]), binary_size(view["bytes"]), f"{view['bytes'] / view['block_bytes']:.2f}"),
        (
            "time of one row",
            f"{1000 * view['block_seconds']:.3f} ms",
            f"{1000 * view['seconds']:.3f} ms",
            f"{view['seconds'] / view['block_seconds']:.2f}",
        ),
    ]
    return FittedTable(("", "BLOCK", "SURROGATE", "RATIO"), rows, numbers=3)


def surrogate_notes(view: Mapping[str, Any]) -> list[str]:
    return [
        f"similarity {view['similarity']:.4f} (5 %: {view['low']:.4f}), measured at {view['tokens']:,} tokens",
        f"the output moves by {view['kl']:.4f} nats; {100 * view['agreement']:.1f} % of the likeliest next tokens stay",
        f"timed on {view['numerics']} with {view['threads']} threads",
    ]


def surrogates_table(view: Mapping[str, Any]) -> FittedTable:
    """Return the surrogates of a zoo; SIZE and TIME are relative to the block."""
    rows = [
        (
            one["application"],
            one["name"],
            one["made"],
            f"{one['bytes'] / one['block_bytes']:.2f}",
            f"{one['seconds'] / one['block_seconds']:.2f}",
            f"{one['similarity']:.4f}",
        )
        for one in view["surrogates"]
    ]
    return FittedTable(("SURROGATE OF", "BLOCK", "MADE", "SIZE", "TIME", "SIMILARITY"), rows, numbers=3, least=("MADE",))

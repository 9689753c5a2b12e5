"""Coefficients of the cost model (``cost.py``), as measured by ``blockwright profile`` or given in a pace table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

SIZES = ("parameters", "kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The coefficients in seconds, and the sizes of the model that they belong to.

    Each run of a plan counts with its share of these bytes; without sizes a sweep counts as one pass of its rows, whatever
    its runs.
    """

    base: float = 0.0  # for a sweep
    step: float = 0.0  # for a run
    read: float = 0.0  # for a pass of the parameters, with any number of rows
    token: float = 0.0  # for a row of a pass
    beyond: float = 0.0  # in addition, for each row of a pass beyond ``KNEE``
    row: float = 0.0  # for a sampled token
    context: float = 0.0  # for a position that a decoding row attends to
    prefill: float = 0.0  # for a position that a prompt token attends to
    parameters: float = 0.0  # bytes, without embeddings
    kv: float = 0.0  # bytes of a position in all layers

    @classmethod
    def from_table(cls, table: Any) -> Coefficients:
        """Return the coefficients of parsed JSON: an object with these names, or a device profile.

        Raises ValueError with a sentence.
        """
        names = [f.name for f in fields(cls)]
        if isinstance(table, dict) and "coefficients" in table:
            table = table["coefficients"]
        if not isinstance(table, dict):
            raise ValueError(f"a pace table is an object with some of: {', '.join(names)}")
        for name, value in table.items():
            if name not in names:
                raise ValueError(f"the pace table has {name!r}; it may have: {', '.join(names)}")
            limit = 1e18 if name in SIZES else 1e6
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < limit:
                raise ValueError(f"{name} in the pace table is {value!r}; give seconds (sizes: bytes), 0 or more")
        if ("parameters" in table) != ("kv" in table):
            raise ValueError("the pace table has one of parameters and kv; give both sizes, or none")
        return cls(**table)


TERMS = tuple(f.name for f in fields(Coefficients) if f.name not in SIZES)  # in the order of ``features``

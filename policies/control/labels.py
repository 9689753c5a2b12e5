"""The names by which people see applications: their models, never the internal names of versions."""

from __future__ import annotations

from collections.abc import Mapping

from .residency import Served, serving


def label(served: Mapping[str, Served], name: str) -> str:
    """Return the model of an application; with the version's place where another version takes the new requests."""
    one = served[name]
    model = one.application.served_as
    return model if serving(served, model) in (one, None) else f"{model} (#{one.rank})"


def labels(served: Mapping[str, Served]) -> dict[str, str]:
    """Return the label of each application by its internal name."""
    return {name: label(served, name) for name in served}

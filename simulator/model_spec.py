"""Description of a model: its sizes, the instances where it is placed, and the models that may serve in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..policies.adaptive.variants import MOST_VARIANTS
from ..policies.nearest import suggestion
from .drafts import DraftSpec
from .record import Bytes, Fault, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model's sizes and places."""

    name: str
    kv_bytes: Bytes  # per token, on all layers together; a multiple of 4
    parameters: Bytes = 0  # bytes, taken from the memory of each instance
    embedding: Bytes = 0  # the part of these bytes that is looked up, not multiplied with
    head: Bytes = 0  # the part of these bytes that only sampled tokens are multiplied with
    hidden_bytes: Bytes = 0  # per token, between the devices of a pipeline
    context: Tokens = 1 << 20  # tokens, prompt and answer together
    share: float = 1.0  # weight of its requests beside the other models'
    shares: str = ""  # a model to share parameters with, as an adapter does; its sizes are that model's
    own: Bytes = 0  # bytes of its own changes to them, its delta
    drafts: DraftSpec | None = None  # of its requests; without it, each token takes a step
    on_demand: bool = False  # loaded only when requests ask for it; others may be unloaded for it
    only: tuple[str, ...] = ()  # names of the entries of ``instances`` where it is placed; empty: everywhere
    equivalents: tuple[str, ...] = ()  # models whose chains may serve its requests, as variants do


def placed(models: Sequence[ModelSpec], entry: str) -> list[ModelSpec]:
    """Return the models that are placed on the instances of an entry."""
    return [model for model in models if not model.only or entry in model.only]


_SHARED = ("kv_bytes", "parameters", "embedding", "head", "hidden_bytes")


def with_shared(table: Any, error: Fault) -> Any:
    """Return the table with the sizes of each model that shares another's parameters filled in.

    Anything that is not a table is left as it is.
    """
    models = table.get("models") if isinstance(table, dict) else None
    if not isinstance(models, list) or not all(isinstance(one, dict) for one in models):
        return table
    named = {one["name"]: one for one in models if isinstance(one.get("name"), str) and not one.get("shares")}
    found = []
    for n, one in enumerate(models):
        base = named.get(shares) if isinstance(shares := one.get("shares", ""), str) else None
        if shares and base is None:
            others = ", ".join(map(repr, named)) or "no model"
            raise error(["models", n, "shares"], f"is {shares!r}; name a model that shares nothing itself ({others})")
        if base is None and one.get("own"):
            raise error(["models", n, "own"], "is given without shares; name the model whose parameters it shares")
        given = next((name for name in _SHARED if base is not None and name in one), "")
        if given:
            raise error(["models", n, given], f"comes from {shares!r}; leave it out, and give the delta's bytes as own")
        inherited = {name: base[name] for name in (*_SHARED, "context") if name in base} if base is not None else {}
        found.append(inherited | one)
    return {**table, "models": found}


def check_places(models: Sequence[ModelSpec], entries: Sequence[str], error: Fault) -> None:
    """Check where models are placed, and which serve for which. ``entries``: names of the entries of ``instances``."""
    named = {model.name: model for model in models}
    for n, model in enumerate(models):
        for name in model.only:
            if name not in entries:
                raise error(["models", n, "only"], f"names {name!r}, no entry of instances; {suggestion(name, entries)}")
        for name in model.equivalents:
            if (says := _refused(model, named.get(name), name, named)) is not None:
                raise error(["models", n, "equivalents"], says)
        for field, names in (("only", model.only), ("equivalents", model.equivalents)):
            if len({*names}) < len(names):
                raise error(["models", n, field], f"names {_twice(names)!r} twice; name each once")
        if len(model.equivalents) > MOST_VARIANTS:
            says = f"are {len(model.equivalents)}; name at most {MOST_VARIANTS}, as many as a model has variants"
            raise error(["models", n, "equivalents"], says)
        if model.equivalents and model.shares:
            raise error(["models", n, "equivalents"], "are given, and an adapter has no variants; leave them out")
    for n, entry in enumerate(entries):
        if not placed(models, entry):
            raise error(["instances", n, "name"], f"is {entry!r}, and no model is placed there; add it to only of one")


def check_surrogates(models: Sequence[ModelSpec], error: Fault, *, pipelines: bool) -> None:
    """Check that surrogates stand for layers of whole models, each on one device."""
    for n, model in enumerate(models):
        if model.drafts is None or not model.drafts.surrogate:
            continue
        if pipelines or model.shares or not model.parameters:
            why = (
                "is given for a pipeline" if pipelines else "is given for an adapter" if model.shares else "needs parameters"
            )
            says = f"{why}; a surrogate stands for layers of a whole model on one device"
            raise error(["models", n, "drafts", "surrogate"], says)


def _refused(model: ModelSpec, other: ModelSpec | None, name: str, named: dict[str, ModelSpec]) -> str | None:
    """Return why a model cannot be an equivalent of another one; None: it can."""
    if name == model.name:
        return f"names {name!r}, the model itself; name others"
    if other is None:
        return f"names {name!r}, no model; {suggestion(name, [*named])}"
    if other.context < model.context:
        return f"names {name!r}, whose context is {other.context} tokens; one needs the {model.context} of {model.name!r}"
    return None


def _twice(names: Sequence[str]) -> str:
    return next(name for n, name in enumerate(names) if name in names[:n])

"""Tables of ``ps``, ``top`` and ``apps`` on model families and drafts; ``family_views.py`` makes the values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import RenderableType

from ...policies.binary_size import binary_size
from ...policies.model.tier_choice import auto_id
from ...policies.model.tiers import layers_of
from .output import FittedTable, similarity_text

View = Mapping[str, Any]


def family_lines(families: Mapping[str, str]) -> list[str]:
    """Return a sentence for each family on the id that chooses among its tiers. ``families``: by model id; "": none."""
    lines = []
    for family in dict.fromkeys(filter(None, families.values())):
        tiers = sorted((model for model, of in families.items() if of == family), key=layers_of)
        if family in families:
            lines.append(f"requests to {auto_id(family)} choose among {', '.join([*tiers, family])}")
    return lines


def chain_lines(applications: Iterable[View]) -> list[str]:
    """Return a line for each model with variants that have served: how often each chain was chosen for it."""
    lines = []
    for one in applications:
        total = sum(one["chains"].values())
        parts = [f"{name or 'its own chain'} {count / total:.0%}" for name, count in one["chains"].items()]
        if any(one["chains"]):
            times = f"{total:,} time{'s' * (total != 1)}"
            lines.append(f"chains chosen for {one['id']}, {times} with switches: {', '.join(parts)}")
        if (found := one.get("similarity", {})).get("tokens"):
            count = found["answers"]
            lines.append(f"of {count:,} answer{'s' * (count != 1)} by others {similarity_text(found, one['id'])}")
    return lines


def tier_table(families: Iterable[View]) -> list[RenderableType]:
    """Return the table of tiers: their layers, what each owns, and with which it shares layers. Nothing without a family."""
    rows = [
        (tier["id"], _layers(tier, family), _owned(tier, family), _sharing(tier))
        for family in families
        for tier in family["tiers"]
    ]
    return ["", FittedTable(("TIER", "LAYERS", "OWNS", "SHARES ITS LAYERS WITH"), rows, numbers=0)] if rows else []


def _layers(tier: View, family: View) -> str:
    every = max(one["layers"] for one in family["tiers"])
    return f"{tier['layers']} of {every}" if tier["layers"] else "-"


def _owned(tier: View, family: View) -> str:
    if tier["id"] == family["id"]:
        return str(binary_size(tier["own"]))
    return f"head, {binary_size(tier['own'])}" if tier["own"] else f"head of {family['id']}"


def _sharing(tier: View) -> str:
    shared = tier["shared_layers"].items()
    return ", ".join(other if layers == tier["layers"] else f"{other} ({layers})" for other, layers in shared) or "-"


def load_tables(families: Collection[View], drafts: Iterable[View]) -> list[RenderableType]:
    """Return the tables of ``top``: rows of the segments of families, choices of tiers, drafts. Nothing without any."""
    shown: list[RenderableType] = []
    rows = [
        (
            family["id"],
            str(one["last"]) if one["first"] == one["last"] else f"{one['first']} to {one['last']}",
            one["tier"] or "-",
            f"{one['sweeps']:,}",
            f"{one['rows'] / one['sweeps']:.2f}" if one["sweeps"] else "-",
        )
        for family in families
        for one in family["segments"]
    ]
    if rows:
        shown += ["", FittedTable(("FAMILY", "LAYERS", "EXIT OF", "STEPS", "REQUESTS/STEP"), rows, numbers=2)]
    shown += [choice_line(family) for family in families if family["choices"]]
    rounds = [
        (one["model"], one["source"], f"{one['rounds']:,}", f"{one['tokens_per_round']:.2f}", f"{one['accepted']:.0%}")
        for one in drafts
    ]
    if rounds:
        shown += ["", FittedTable(("DRAFTS OF", "SOURCE", "STEPS", "TOKENS/STEP", "ACCEPTED"), rounds, numbers=3)]
    return shown


def choice_line(family: View) -> str:
    """Return a sentence on the tiers that answered the requests which leave the choice to the server."""
    answered = ", ".join(f"{tier} {count:,}" for tier, count in family["choices"].items())
    return f"{auto_id(family['id'])} was answered by {answered}"

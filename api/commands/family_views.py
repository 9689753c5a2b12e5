"""The data that ``ps`` and ``top`` show of model families and of drafts, from ``/admin/cluster`` and ``/metrics``.

Pure: bodies in, plain data out (``docs/schemas/``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...policies.model.tiers import layers_of

DRAFTS = {  # metric of drafts by model and source -> field
    "vllm:spec_decode_num_drafts_total": "rounds",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
}
CHOICES = "blockwright:tier_choices_total"
Drafts = Mapping[tuple[str, str, str], float]  # (model, source, field) -> count
Choices = Mapping[tuple[str, str], float]  # (family, tier) -> requests


def tiers_of(applications: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the ids of each family's tiers, the lowest first and the family itself, which is the top tier, last."""
    found: dict[str, list[str]] = {}
    for name, one in applications.items():
        if (family := one.get("family", "")) in applications:  # servers of earlier releases do not report it
            found.setdefault(family, []).append(name)
    return {family: [*sorted(tiers, key=layers_of), family] for family, tiers in found.items()}


def tier_memory(applications: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each family with its tiers: layers, bytes owned, and the layers that other tiers of the family have, too.

    ``layers`` is 0 where the server does not report it, such as for a model without parameters in memory.
    """
    found = []
    for family, tiers in tiers_of(applications).items():
        views = [_tier(applications[tier], [other for other in tiers if other != tier]) for tier in tiers]
        found.append({"id": family, "tiers": [{"id": tier, **one} for tier, one in zip(tiers, views, strict=True)]})
    return found


def _tier(one: Mapping[str, Any], others: Iterable[str]) -> dict[str, Any]:
    segments = one.get("segments", ())
    shared = {other: sum(s.get("layers", 0) for s in segments if other in s["of"]) for other in others}
    return {
        "layers": sum(s.get("layers", 0) for s in segments),
        "own": one["bytes"]["own"],
        "shared_layers": {other: layers for other, layers in shared.items() if layers},
    }


def draft_counts(before: Drafts, after: Drafts) -> list[dict[str, Any]]:
    """Return the drafts of each model and source between two samples, or all so far if there were none in between.

    A model and source without drafts so far is left out.
    """
    found = []
    for model, source in dict.fromkeys((model, source) for model, source, _ in after):
        totals = {field: after.get((model, source, field), 0.0) for field in DRAFTS.values()}
        recent = {field: total - before.get((model, source, field), 0.0) for field, total in totals.items()}
        counts = recent if recent["rounds"] > 0 else totals
        if (rounds := counts["rounds"]) > 0:
            tokens = round(1 + counts["accepted"] / rounds, 3)
            share = round(counts["accepted"] / counts["drafted"], 3) if counts["drafted"] else 0.0
            figures = {"rounds": int(rounds), "tokens_per_round": tokens, "accepted": share}
            found.append({"model": model, "source": source, **figures})
    return found


def family_load(before: Mapping[str, Any], after: Mapping[str, Any], chosen: Choices) -> list[dict[str, Any]]:
    """Return the sweeps and rows of each family's segments between two samples, over all workers, and the choices so far.

    The counts of a segment are all so far if no row passed it in between. ``chosen``: the choices of ``NAME:auto``.
    """
    totals, earlier = _segments(after), _segments(before)
    found = []
    for family, tiers in tiers_of(after["applications"]).items():
        segments = []
        for first, last in sorted(key[1:] for key in totals if key[0] == family):
            total, old = totals[family, first, last], earlier.get((family, first, last), (0, 0))
            recent = total[0] - old[0], total[1] - old[1]
            sweeps, rows = recent if recent[0] > 0 else total
            tier = next((tier for tier in tiers[:-1] if layers_of(tier) == last), "")
            segments.append({"first": first, "last": last, "tier": tier, "sweeps": sweeps, "rows": rows})
        if segments:
            segments[-1]["tier"] = family
        choices = {tier: int(chosen.get((family, tier), 0)) for tier in tiers if (family, tier) in chosen}
        found.append({"id": family, "segments": segments, "choices": choices})
    return found


def _segments(cluster: Mapping[str, Any]) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Return the sweeps and rows of each segment, by (family, first layer, last layer), over all workers."""
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    for worker in cluster["workers"]:
        for one in worker.get("segments", ()):  # servers of earlier releases do not report them
            key = one["family"], one["first"], one["last"]
            sweeps, rows = found.get(key, (0, 0))
            found[key] = sweeps + one["sweeps"], rows + one["rows"]
    return found

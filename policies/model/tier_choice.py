"""Choice of a family's tier for a request: by its ``quality``, or by the confidence in its first tokens.

The request names one tier, or ``NAME:auto``. Requests of the latter begin on a lower tier, which stays if it is sure of its
answer; otherwise they go up once, to the top. Pure functions of ids and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .confidence import Threshold

LOW = "low"
HIGH = "high"
AUTO = "auto"
QUALITIES = (LOW, HIGH, AUTO)
DEFAULT_THETA = 0.9  # of the measure mean, where nothing else is known
MOST_THETA = 2.0  # as ``ALWAYS``


def auto_id(family: str) -> str:
    """Return the model id whose requests choose among a family's tiers."""
    return f"{family}:{AUTO}"


def family_of_auto(model: str) -> str:
    """Return the family of a model id of this form; "" if the id has another form."""
    family, colon, rest = model.rpartition(":")
    return family if colon and rest == AUTO else ""


def is_answered(model: str, families: Mapping[str, str]) -> bool:
    """Return True if requests for an id are answered: it is served, or chooses among the tiers of a family that is.

    ``families``: the family of each served model, by id; empty for a model without one.
    """
    family = family_of_auto(model)
    return model in families or (family in families and family in families.values())


def starting_tier(tiers: Sequence[str], stored: Mapping[str, Threshold]) -> str:
    """Return the tier on which ``auto`` starts: the lowest that has a stored rule, or simply the lowest.

    ``tiers`` are the ids of the lower tiers, lowest first.
    """
    return next((tier for tier in tiers if tier in stored), tiers[0])


def threshold_of(family: str, stored: Threshold | None, thetas: Mapping[str, float], measure: str, tokens: int) -> Threshold:
    """Return the rule of a family's ``auto``.

    ``thetas`` is the setting ``theta``; an entry there takes precedence over the stored rule, and is used with the settings
    ``measure`` and ``tokens``.
    """
    theta = thetas.get(family, thetas.get("*"))
    if theta is not None:
        return Threshold(theta=theta, measure=measure, tokens=tokens)
    return stored or Threshold(theta=DEFAULT_THETA, measure=measure, tokens=tokens)


def asked_model(model: str, quality: str, families: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return the model that a request with ``quality`` asks for, and "" or a sentence on why it cannot.

    ``families``: the ids of the lower tiers of each family, lowest first.
    """
    family = model if model in families else family_of_auto(model)
    if family not in families:
        family = next((name for name, tiers in families.items() if model in tiers), "")
    if not family:
        return model, f"quality is {quality!r}, but {model} has no tiers; leave quality out"
    lowest = families[family][0]
    wanted = {LOW: lowest, HIGH: family, AUTO: auto_id(family)}[quality]
    if model in families[family] and wanted != model:
        return model, f"quality is {quality!r}, but the model is the tier {model}; name {family}, or leave quality out"
    return wanted, ""

"""Resolution of a request's draft options from its own fields and the settings of its model, and checks of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from ..model.tier_choice import family_of_auto
from ..model.tiers import family_of, layers_of, tier_id
from .draft_model import FORM, DraftParty, draft_model_fault, no_model
from .options import DraftOptions

OFF = "off"
AUTO = "auto"  # the source that pays most, of the prompt and the lower tiers
MODES = (OFF, "prompt", AUTO)  # besides these, a lower tier: tier:4; any other text is the id of another model
REJECTION = "rejection"
RULES = ("coupling", REJECTION)  # of acceptance
EVERY = "*"  # stands for every model without an entry
TIER = r"tier:([1-9]\d{0,8})"


def tier_layers(mode: str) -> int:
    """Return the layers of the tier that a mode names; 0: it names none."""
    found = re.fullmatch(TIER, mode)
    return int(found[1]) if found else 0


def names_model(mode: str) -> bool:
    """Return whether a mode is the id of another model: any text that means nothing else."""
    return mode not in MODES and not tier_layers(mode)


def mode_fault(mode: str) -> str:
    """Return the second half of a sentence on a mode that cannot be, or an empty text.

    A text without letters, a known mode in other letters and a tier without layers are no ids of models.
    """
    plain = mode.strip().casefold()
    if names_model(mode) and (not plain or plain in MODES or re.fullmatch(r"tier\b.*", plain)):
        return f"which is not a source of drafts; {FORM}"
    return ""


def exits_below(model: str, base: str, models: Mapping[str, str]) -> list[str]:
    """Return the ids of the tiers that leave a model below its own head, deepest last.

    Args:
        model: id of the model.
        base: of an adapter: id of the model that it is put on; else empty.
        models: the family of every model that is served, by id; empty for a model without one. ``NAME:auto`` is no exit.
    """
    whole = base or model
    family, layers = models.get(whole, ""), layers_of(whole)
    tiers = [
        one
        for one, of in models.items()
        if of == (family or whole) and layers_of(one) and (not family or layers_of(one) < layers)
    ]
    return sorted(tiers, key=layers_of)


def exit_fault(mode: str, model: str, exits: Sequence[str]) -> str:
    """Return the second half of a sentence on a mode that names a tier which ``model`` does not pass, or an empty text.

    ``exits``: as ``exits_below`` returns them.
    """
    layers = tier_layers(mode)
    if not layers or layers in map(layers_of, exits):
        return ""
    there = ", ".join(f"tier:{layers_of(one)}" for one in exits)
    return f"but {model} passes no exit after {layers} layers; give off, prompt or auto{there and f', or one of {there}'}"


def settings_fault(modes: Mapping[str, str], served: Collection[str] | None) -> str:
    """Return a sentence on a wrong setting ``drafts``, or an empty text.

    ``served``: the applications that there are; None if others may come. A tier is named by its family, since the tiers
    are known only when the checkpoints are open.
    """
    for model, mode in modes.items():
        if served is not None and model != EVERY and model not in served and family_of(model) not in served:
            return f"drafts.{model} names no application; there are: {', '.join(sorted(served)) or 'none'}"
        fault = mode_fault(mode)
        named = {mode, family_of(mode), family_of_auto(mode)}
        if not fault and names_model(mode) and served is not None and not named & {*served}:
            fault = no_model(mode, served)
        if fault:
            return f"drafts.{model} is {mode!r}, {fault}"
    return ""


def exits_fault(modes: Mapping[str, str], bases: Mapping[str, str], models: Mapping[str, str]) -> str:
    """Return a sentence on a setting ``drafts`` that names a tier which its model does not pass, or an empty text.

    ``bases`` and ``models``: as ``exits_below`` takes them, for the models whose checkpoints are open.
    """
    for model, mode in modes.items():
        if model in models and (fault := exit_fault(mode, model, exits_below(model, bases.get(model, ""), models))):
            return f"drafts.{model} is {mode!r}, {fault}"
    return ""


def models_fault(
    modes: Mapping[str, str],
    parties: Mapping[str, DraftParty],
    exits: Callable[[str], Sequence[str]],
    same_tokens: Callable[[str, str], bool],
    *,
    more: bool,
) -> str:
    """Return a sentence on a setting ``drafts`` that names a model which cannot draft, or an empty text.

    Args:
        modes: the setting.
        parties: the models whose checkpoints are open, by id.
        exits: returns the lower tiers of a model, as ``exits_below`` does.
        same_tokens: returns whether two models, by id, have the same tokens.
        more: other models may come.
    """
    for model, mode in modes.items():
        if not names_model(mode) or mode_fault(mode):
            continue
        fault = ""
        if mode not in parties:
            fault = "" if more else no_model(mode, parties)
        elif model in parties:
            fault = draft_model_fault(parties[model], parties[mode], exits(model), partial(same_tokens, model, mode))
        if fault:
            return f"drafts.{model} is {mode!r}, {fault}"
    return ""


def absent_drafters(modes: Mapping[str, str], absent: Callable[[str], bool]) -> list[str]:
    """Return a sentence for each entry of the setting ``drafts`` that names an ``absent`` model."""
    return [
        f"drafts.{model} names {mode}, which is not served: requests go on without drafts by it until it is added"
        for model, mode in modes.items()
        if names_model(mode) and absent(mode)
    ]


def mode_of(modes: Mapping[str, str], model: str, asked: str | None) -> str:
    """Return the source of a request's drafts: its own, or the setting's for its model, the family or every model."""
    return asked or next((modes[name] for name in (model, family_of(model), EVERY) if name in modes), OFF)


def draft_options(
    modes: Mapping[str, str],
    model: str,
    asked: str | None,
    tokens: int,
    prediction: Sequence[int],
    exits: Iterable[str] = (),
    reason: str = "",
) -> DraftOptions | None:
    """Return the drafts of a request, or None if it has none.

    ``modes``: the setting ``drafts``; a tier without an entry has the one of its family. ``asked``: the
    request's own mode, which comes before the setting. A prediction is used although the setting is off, but not if the
    request itself is. ``exits``: the tiers that can draft for the model; a setting for several models may name another.
    ``reason``: why the model that the source names may not draft, or empty.
    """
    if asked == OFF:
        return None
    mode = mode_of(modes, model, asked)
    if mode == OFF and not prediction:
        return None
    if names_model(mode):
        return DraftOptions(False, tokens, list(prediction), model=mode, reason=reason)
    tiers = [*exits] if mode == AUTO else []
    if layers := tier_layers(mode):
        tiers = [one for one in exits if layers_of(one) == layers]
        if not tiers and not 0 < layers_of(model) <= layers:  # else a tier that has its family's setting
            tiers = [tier_id(family_of(model) or model, layers)]
    if mode != "prompt" and not tiers and not prediction and mode != AUTO:
        return None
    return DraftOptions(mode in ("prompt", AUTO), tokens, list(prediction), tiers)

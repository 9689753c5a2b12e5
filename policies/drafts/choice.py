"""The choice of a request's drafts, from its own fields and the settings of its model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..model.tiers import family_of
from .options import LARGEST, DraftOptions

OFF = "off"
MODES = (OFF, "prompt", "auto")  # "auto" is the best source that there is, today the prompt
EVERY = "*"  # stands for every model without an entry
FORM = f"give {', '.join(MODES[:-1])} or {MODES[-1]}"


def mode_fault(mode: str) -> str:
    """Return the second half of a sentence on an unknown mode, or an empty text for a known one.

    A tier (``tier:4``) and a model's name will be sources one day, so they get the reason why they are not. A text
    without letters and a known mode in other letters cannot mean these.
    """
    if mode in MODES:
        return ""
    plain = mode.strip().casefold()
    if not plain or plain in MODES:
        return f"which is not a source of drafts; {FORM}"
    return f"but drafts by a tier or by another model are not built yet; {FORM}"


def settings_fault(modes: Mapping[str, str], tokens: int, served: Collection[str] | None) -> str:
    """Return a sentence on wrong settings ``drafts`` and ``draft_tokens``, or an empty text.

    ``served``: the applications that there are; None if others may come. A tier is named by its family, since the tiers
    are known only when the checkpoints are open.
    """
    for model, mode in modes.items():
        if served is not None and model != EVERY and model not in served and family_of(model) not in served:
            return f"drafts.{model} names no application; there are: {', '.join(sorted(served)) or 'none'}"
        if fault := mode_fault(mode):
            return f"drafts.{model} is {mode!r}, {fault}"
    if not 0 <= tokens <= LARGEST:
        return f"draft_tokens is {tokens}; give 0 (chosen as it pays) to {LARGEST}"
    return ""


def draft_options(
    modes: Mapping[str, str], model: str, asked: str | None, tokens: int, prediction: Sequence[int]
) -> DraftOptions | None:
    """Return the drafts of a request, or None if it has none.

    ``modes``: the setting ``drafts``; a tier without an entry has the one of its family. ``asked``: the
    request's own mode, which comes before the setting. A prediction is used although the setting is off, but not if the
    request itself is.
    """
    if asked == OFF:
        return None
    mode = asked or next((modes[name] for name in (model, family_of(model), EVERY) if name in modes), OFF)
    if mode == OFF and not prediction:
        return None
    return DraftOptions(prompt=mode != OFF, tokens=tokens, prediction=list(prediction))

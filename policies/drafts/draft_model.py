"""Checks of draft models: a model can draft for another one if it has the same vocabulary and other parameters.

A draft's token ids are tokens of the target, so both models must have the same tokens. A model that shares the parameters of
its target, as an adapter on the same base does, takes as long for a step as its target and can gain nothing; a lower tier is
a source of its own (``tier:LAYERS``), which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..model.tier_choice import family_of_auto
from ..model.tiers import layers_of

FORM = "give off, prompt, tier:LAYERS, auto or the id of another model"


@dataclass(frozen=True, slots=True)
class DraftParty:
    """A model that drafts, or is drafted for.

    ``whole``: the id of the model whose parameters it has: of an adapter its base, of a lower tier its family.
    ``vocabulary``: the number of its token ids. ``virtual``: virtual tokens before every prompt. ``chooses``: it is
    ``NAME:auto``, no model.
    """

    id: str
    whole: str
    vocabulary: int
    virtual: int = 0
    chooses: bool = False
    embeds: bool = False

    @classmethod
    def of(
        cls,
        id: str,
        bases: Mapping[str, str],
        families: Mapping[str, str],
        vocabulary: int,
        virtual: int,
        *,
        chooses: bool = False,
        embeds: bool = False,
    ) -> DraftParty:
        """Return a model. ``bases`` and ``families``: of each adapter and each lower tier, by id; empty: it has none."""
        base = bases.get(id, "") or id
        return cls(id, families.get(base, "") or base, vocabulary, virtual, chooses, embeds)


def no_model(name: str, served: Iterable[str]) -> str:
    """Return the second half of a sentence on a source of drafts that names no served model."""
    there = ", ".join(sorted(one for one in served if not family_of_auto(one))[:20]) or "none"
    return f"which is neither a source of drafts nor a model that is served; {FORM} (there are: {there})"


def draft_model_fault(
    target: DraftParty, draft: DraftParty, exits: Sequence[str], same_tokens: Callable[[], bool] = lambda: True
) -> str:
    """Return the second half of a sentence on a model that cannot draft for ``target``, or an empty text.

    ``exits``: as ``exits_below`` returns them. ``same_tokens``: returns whether both have the same tokens under each id; it
    is asked last, since it may read files.
    """
    own, other = target.id, draft.id
    if draft.chooses:
        return f"but {other} chooses among tiers and is no model; name one of them"
    if draft.embeds:
        return f"but {other} is an embedder, which draws no tokens; name a model that generates"
    if own == other:
        return f"but {own} would draft for itself; give a smaller model of the same vocabulary"
    if other in exits:
        return f"but {other} is a lower tier of {own}; give tier:{layers_of(other)}, which takes no memory of its own"
    if draft.whole == target.whole:
        return (
            f"but {other} and {own} have the same parameters, so that drafts would take as long as the answer; "
            "give a smaller model of the same vocabulary"
        )
    for one, lacks in ((draft, target), (target, draft)):
        if one.virtual:
            return (
                f"but {one.id} has {one.virtual} virtual tokens before every prompt, which {lacks.id} does not know; "
                "give off, prompt or auto"
            )
    if draft.vocabulary != target.vocabulary:
        return (
            f"but {other} has a vocabulary of {draft.vocabulary:,} tokens and {own} one of {target.vocabulary:,}; "
            "give a model of the same vocabulary"
        )
    if not same_tokens():
        return f"but the tokenizers of {other} and {own} have different tokens; give a model with the same tokenizer"
    return ""

"""Chains with surrogates that draft for served applications, as the setting ``speculate`` asks for. Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..gpu.weights.checkpoint import Checkpoint
from ..policies.adaptive.speculation import GAIN, DraftingSurrogate, chosen_surrogates, drafting_chain
from ..policies.adaptive.variants import Swap, variant_source
from ..policies.drafts.choice import EVERY
from ..zoo.layout import CHAIN
from ..zoo.source import open_source
from ..zoo.surrogate.records import surrogates_of
from ..zoo.zoo import Zoo
from .checkpoints import OpenedCheckpoints
from .settings.errors import SettingsError
from .settings.settings import Settings

log = logging.getLogger("blockwright.cluster")


def with_drafting_chains(settings: Settings, opened: OpenedCheckpoints) -> OpenedCheckpoints:
    """Add the chains that only draft: where the setting asks for them, and by default where they promise to gain.

    Raises SettingsError for an application that is to have some and can have none.
    """
    checkpoints = dict(opened.checkpoints)
    drafting = dict[str, str]()
    for name, own in opened.checkpoints.items():
        asked = name in settings.drafting.speculating
        if not (asked or (name not in opened.on_demand and _may_by_default(name, settings))):
            continue
        if fault := _fault(name, settings, checkpoints):
            if asked:
                raise SettingsError(f"speculate.{name} is tokens, {fault}")
            continue
        for number, chain in enumerate(_drafting_chains(name, own, asked=asked)):
            checkpoints[drafting_chain(name, number)] = chain
            drafting[drafting_chain(name, number)] = name
    return replace(opened, checkpoints=checkpoints, drafting=drafting)


def _may_by_default(name: str, settings: Settings) -> bool:
    """Return whether nothing in the settings says whether, or how, requests of an application draft."""
    own = settings.drafting
    return name in settings.models.applications and name not in own.speculate and not {name, EVERY} & own.drafts.keys()


def _fault(name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return the second half of a sentence on an application that can have no drafting chain, or an empty text."""
    own = checkpoints[name]
    if not (Path(os.path.realpath(own.path)) / CHAIN).is_file() or own.variant:
        return f"but {name} is no application of a zoo, which has the surrogates; add it: blockwright zoo add"
    if own.deltas:
        return f"but {name} is an adapter; only a whole model has surrogates"
    if settings.parameter_drops.is_on:
        return "and overload is on; they are not used together: choose one"
    if settings.worker.stages(name) > 1:
        return f"and pipelines.{name} spreads it over workers; choose one"
    if drafting_chain(name) in checkpoints:
        return f"but another application is called {drafting_chain(name)}; give that another name"
    return ""


def _drafting_chains(name: str, own: Checkpoint, *, asked: bool) -> list[Checkpoint]:
    """Return the chains that draft for an application, the best first: each has a surrogate of another block.

    If they are not ``asked`` for, only the ones that promise to gain.
    """
    folder = Path(os.path.realpath(own.path))
    zoo = Zoo(folder.parent.parent)
    chain = zoo.chain(folder.name).components
    sizes = [zoo.component(id).nbytes for id in chain]
    known = [(one, place) for one in surrogates_of(zoo, folder.name) if (place := one.place(chain)) is not None]
    candidates = [DraftingSurrogate(*place, one.block_bytes - one.nbytes, one.agreement) for one, place in known]
    least = 0.0 if asked else GAIN
    chosen = [known[place] for place in chosen_surrogates(candidates, len(chain), sum(sizes), least)]
    if not chosen and asked:
        raise SettingsError(
            f"speculate.{name} is tokens, but the zoo has no surrogate of a block of {name}; make one: "
            f"blockwright zoo surrogate {folder.name} BLOCK"
        )
    for number, (_, (first, last)) in enumerate(chosen):
        log.info("%s drafts for %s at components %d to %d", drafting_chain(name, number), name, first, last - 1)
    return [open_source(variant_source(str(folder), [Swap(*place, one.surrogate)])) for one, place in chosen]

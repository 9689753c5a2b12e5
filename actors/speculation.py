"""Chains with surrogates that draft for served applications, as the setting ``speculate`` asks for. Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..gpu.weights.checkpoint import Checkpoint
from ..policies.adaptive.speculation import DraftingSurrogate, best_surrogate, drafting_chain
from ..policies.adaptive.variants import Swap, variant_source
from ..zoo.layout import CHAIN
from ..zoo.source import open_source
from ..zoo.surrogate.records import surrogates_of
from ..zoo.zoo import Zoo
from .checkpoints import OpenedCheckpoints
from .settings.errors import SettingsError
from .settings.settings import Settings

log = logging.getLogger("blockwright.cluster")


def with_drafting_chains(settings: Settings, opened: OpenedCheckpoints) -> OpenedCheckpoints:
    """Add the chains that only draft. Raises SettingsError for an application that can have none."""
    checkpoints = dict(opened.checkpoints)
    served = [name for name in settings.drafting.speculating if name in checkpoints]  # others have been removed for good
    for name in served:
        if fault := _fault(name, settings, checkpoints):
            raise SettingsError(f"speculate.{name} is tokens, {fault}")
        checkpoints[drafting_chain(name)] = _drafting_chain(name, checkpoints[name])
    drafting = {drafting_chain(name): name for name in served}
    return replace(opened, checkpoints=checkpoints, drafting=drafting)


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


def _drafting_chain(name: str, own: Checkpoint) -> Checkpoint:
    folder = Path(os.path.realpath(own.path))
    zoo = Zoo(folder.parent.parent)
    chain = zoo.chain(folder.name).components
    sizes = [zoo.component(id).nbytes for id in chain]
    known = [(one, place) for one in surrogates_of(zoo, folder.name) if (place := one.place(chain)) is not None]
    candidates = [DraftingSurrogate(*place, one.block_bytes - one.nbytes, one.agreement) for one, place in known]
    best = best_surrogate(candidates, len(chain), sum(sizes))
    if best < 0:
        raise SettingsError(
            f"speculate.{name} is tokens, but the zoo has no surrogate of a block of {name}; make one: "
            f"blockwright zoo surrogate {folder.name} BLOCK"
        )
    surrogate, place = known[best]
    log.info("%s drafts for %s, with a surrogate of components %d to %d", drafting_chain(name), name, place[0], place[1] - 1)
    return open_source(variant_source(str(folder), [Swap(*place, surrogate.surrogate)]))

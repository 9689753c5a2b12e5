"""Chains with surrogates that draft, or guess hidden states, for served applications (``speculate``). Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..gpu.model.config import ComponentConfig, attention_of
from ..gpu.weights.checkpoint import Checkpoint
from ..policies.adaptive.guessing import guessing_chain
from ..policies.adaptive.speculation import GAIN, MOST_SURROGATES, DraftingSurrogate, chosen_surrogates, drafting_chain
from ..policies.adaptive.variants import Swap, variant_source
from ..policies.control.events import Application
from ..policies.drafts.choice import EVERY
from ..policies.model.chain import Component, Kind, KvLayout
from ..policies.model.partition import hop_borders
from ..zoo.layout import CHAIN
from ..zoo.source import open_source
from ..zoo.surrogate.records import surrogates_of
from ..zoo.zoo import Zoo
from .checkpoints import OpenedCheckpoints, application_of
from .settings.errors import SettingsError
from .settings.settings import Settings

log = logging.getLogger("blockwright.cluster")


def with_drafting_chains(settings: Settings, opened: OpenedCheckpoints) -> OpenedCheckpoints:
    """Add the chains that only draft: where the setting asks for them, and by default where they promise to gain.

    Raises SettingsError for an application that is to have some and can have none.
    """
    checkpoints = dict(opened.checkpoints)
    drafting = dict[str, str]()
    for name in opened.checkpoints:
        beside = chains_beside(name, settings, checkpoints, by_default=name not in opened.on_demand)
        checkpoints |= beside
        drafting |= dict.fromkeys(beside, name)
    return replace(opened, checkpoints=checkpoints, drafting=drafting)


def chains_beside(
    name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint], *, by_default: bool
) -> dict[str, Checkpoint]:
    """Return the chains that draft or guess for an application, by id.

    ``by_default``: nothing needs to ask for drafts that promise to gain. ``checkpoints``: of all applications. Raises
    SettingsError for one that is to have some and can have none.
    """
    own, drafting = checkpoints[name], settings.drafting
    if name in drafting.guessing:
        if fault := _hidden_fault(name, settings, checkpoints):
            raise SettingsError(f"speculate.{name} is hidden, {fault}")
        return {guessing_chain(name): _guessing_chain(name, own, settings)}
    asked = name in drafting.speculating
    if not (asked or (by_default and _may_by_default(name, settings))):
        return {}
    if fault := _fault(name, settings, checkpoints):
        if asked:
            raise SettingsError(f"speculate.{name} is tokens, {fault}")
        return {}
    chains = _drafting_chains(name, own, asked=asked)
    return {drafting_chain(name, number): chain for number, chain in enumerate(chains)}


def hidden_applications(
    own: Application, beside: Mapping[str, Checkpoint], settings: Settings, dtype: str
) -> list[tuple[Checkpoint, Application]]:
    """Return chains that draft or guess for a served application as applications, with their checkpoints.

    ``dtype``: in which they are served.
    """
    found = []
    for id, checkpoint in beside.items():
        specs = checkpoint.specs(settings.worker_memory.page_size, dtype)
        made = application_of(id, checkpoint, specs, own.max_length, 1)
        found.append((checkpoint, replace(made, model=id, created=own.created, drafts_for=own.name)))
    return found


def hidden_chains(name: str) -> list[str]:
    """Return the ids of all chains that may draft or guess for an application."""
    return [guessing_chain(name), *(drafting_chain(name, number) for number in range(MOST_SURROGATES))]


def _may_by_default(name: str, settings: Settings) -> bool:
    """Return whether nothing in the settings says whether, or how, requests of an application draft."""
    own = settings.drafting
    return name in settings.models.applications and name not in own.speculate and not {name, EVERY} & own.drafts.keys()


def _hidden_fault(name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return the second half of a sentence on an application whose hidden states cannot be guessed, or an empty text."""
    if settings.worker.stages(name) < 2:
        return f"and all of {name} is on one worker, where nothing waits for its states; spread it: pipelines.{name}=2"
    if settings.worker.device != "cpu":
        return f"and device is {settings.worker.device}: a card computes no guesses; choose device=cpu"
    if settings.dispatching.predicts:
        return f"and dispatch is {settings.dispatching.dispatch}: forecasts know no guesses; choose another dispatch"
    if guessing_chain(name) in checkpoints:
        return f"but another application is called {guessing_chain(name)}; give that another name"
    return _zoo_fault(name, settings, checkpoints)


def _fault(name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return the second half of a sentence on an application that can have no drafting chain, or an empty text."""
    if settings.worker.stages(name) > 1:
        return f"and pipelines.{name} spreads it over workers; choose one"
    if drafting_chain(name) in checkpoints:
        return f"but another application is called {drafting_chain(name)}; give that another name"
    return _zoo_fault(name, settings, checkpoints)


def _zoo_fault(name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Return the second half of a sentence on an application that can have no surrogate, or an empty text."""
    own = checkpoints[name]
    if not (Path(os.path.realpath(own.path)) / CHAIN).is_file() or own.variant:
        return f"but {name} is no application of a zoo, which has the surrogates; add it: blockwright zoo add"
    if own.deltas:
        return f"but {name} is an adapter; only a whole model has surrogates"
    if settings.parameter_drops.is_on:
        return "and overload is on; they are not used together: choose one"
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


def _guessing_chain(name: str, own: Checkpoint, settings: Settings) -> Checkpoint:
    """Return the chain that guesses at the first border of an application's pipeline, with the nearest surrogate there."""
    folder = Path(os.path.realpath(own.path))
    zoo = Zoo(folder.parent.parent)
    chain = zoo.chain(folder.name).components
    parts = [
        Component(b"", Kind.ATTENTION, zoo.component(id).nbytes, 1, 1, _kv(part)) for id, (part, _) in _with(chain, own)
    ]
    border = hop_borders(parts, settings.worker.stages(name))[1]
    known = [(one, place) for one in surrogates_of(zoo, folder.name) if (place := one.place(chain)) is not None]
    there = [(one, place) for one, place in known if place[1] == border and place[0] > 0]
    if not there:
        raise SettingsError(
            f"speculate.{name} is hidden, but the zoo has no surrogate of a block of {name} that ends with component "
            f"{border - 1}, where its pipeline leaves the first worker; make one: blockwright zoo surrogate {folder.name} "
            f"{border - 2}-{border - 1}"
        )
    one, (first, _) = max(there, key=lambda found: (found[0].similarity, found[0].surrogate))
    log.info("%s guesses the hidden states of %s behind component %d", guessing_chain(name), name, border - 1)
    return open_source(variant_source(str(folder), [Swap(first, len(chain) - 1, one.surrogate)]))


def _with(chain: Sequence[str], own: Checkpoint) -> Iterable[tuple[str, tuple[ComponentConfig, object]]]:
    return zip(chain, own.parts, strict=True)


def _kv(config: ComponentConfig) -> KvLayout | None:
    """Return some layout if a component has KV: where a chain is cut depends on that alone."""
    return KvLayout(1, 1, "float32", 1) if attention_of(config) is not None else None

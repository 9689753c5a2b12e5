"""Variants of the served applications: chains with blocks of others that a zoo knows as equivalent. Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..gpu.weights.checkpoint import Checkpoint
from ..gpu.weights.token_table import same_tokens
from ..policies.adaptive.equivalence import is_similar
from ..policies.adaptive.variants import (
    Equivalent,
    Swap,
    Variant,
    accuracy_ranks,
    less_accurate,
    make_variants,
    swapped,
    variant_source,
)
from ..policies.control.events import Application
from ..zoo.equivalence.records import stored_equivalences
from ..zoo.layout import CHAIN
from ..zoo.source import open_source
from ..zoo.zoo import Zoo
from .checkpoints import application_of, tokens_of
from .settings.errors import SettingsError
from .settings.models import listed
from .settings.settings import Settings
from .sizing import max_lengths

log = logging.getLogger("blockwright.cluster")
NO_PAIR = (
    "adaptive.%s is %s, but no served application has an equivalent block; compare them: blockwright zoo equivalence, "
    "and serve the other one, too"
)
TOO_FEW = (
    "accuracy.%s names %d models that are served, and %d of them may answer in the place of %s: half of the setting "
    "variants; set variants=%d"
)


def check_adaptive(settings: Settings, checkpoints: Mapping[str, Checkpoint], added: Collection[str] | None = None) -> None:
    """Raise SettingsError if the settings ``adaptive`` and ``accuracy`` name models that can have no variants.

    ``checkpoints``: by model. ``added``: only these are checked; None: all that are there.
    """
    for name, mode in settings.models.adaptive.items():
        if mode == "off" or name not in (checkpoints if added is None else added):
            continue
        if mode == "equal" and not _zoo(checkpoints[name]):
            raise SettingsError(
                f"adaptive.{name} is equal, but {name} is no application of a zoo, which has the equivalences; add it: "
                "blockwright zoo add, and serve ZOO/chains/NAME"
            )
        if checkpoints[name].deltas:
            raise SettingsError(f"adaptive.{name} is {mode}, but {name} is an adapter; only a whole model has variants")
        if mode == "equal" and checkpoints[name].exits:
            raise SettingsError(f"adaptive.{name} is equal, but {name} is a family; set quality, or leave adaptive out")
        if settings.parameter_drops.is_on:
            raise SettingsError(f"adaptive.{name} is {mode}, and overload is on; they are not used together: choose one")
        if settings.worker.stages(name) > 1:
            raise SettingsError(f"adaptive.{name} is {mode}, and pipelines.{name} spreads it over workers; choose one")
        if mode == "any":
            _check_order(name, settings, checkpoints)


def _check_order(name: str, settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> None:
    """Raise SettingsError if a model in an application's order of accuracy cannot answer its requests."""
    for other in settings.models.accuracy_order(name):
        named = f"accuracy.{name} names {other}"
        if other not in checkpoints:
            raise SettingsError(f"{named}, which is not served; there are: {listed(checkpoints)}")
        one, own = checkpoints[other], checkpoints[name]
        spread = "is spread over workers" if settings.worker.stages(other) > 1 else ""
        if why := ("is an adapter" if one.deltas else "gives vectors" if one.embeds else spread):
            raise SettingsError(f"{named}, which {why}, so it cannot answer in another's place; leave it out")
        if not same_tokens(tokens_of(one), tokens_of(own)):
            raise SettingsError(
                f"{named}, which has other tokens than {name}, so it cannot answer in its place; leave it out"
            )
        lengths = max_lengths(settings.requests, {other: one.config, name: own.config})
        if lengths[other] < lengths[name]:
            raise SettingsError(
                f"{named}, which handles {lengths[other]} tokens, fewer than the {lengths[name]} of {name}; "
                f"set max_model_len={lengths[other]}, or leave it out"
            )


def may_vary(settings: Settings, checkpoint: Checkpoint) -> bool:
    """Return whether variants may differ when a model with this checkpoint comes or goes."""
    return any(mode != "off" for mode in settings.models.adaptive.values()) and not checkpoint.deltas


def variants_of(
    checkpoints: Mapping[str, Checkpoint], applications: Sequence[Application], settings: Settings, dtype: str
) -> list[Application]:
    """Return the variants that the setting ``adaptive`` asks for, made of the served applications.

    Equal ones go first. Less accurate ones get at most half of the places that there are, since many may look alike.
    ``checkpoints``: of these applications, by name. ``dtype``: in which they are served.
    """
    found = []
    served = {one.served_as: one for one in applications if one.name in checkpoints}
    for name, mode in settings.models.adaptive.items():
        if mode == "off" or name not in served:
            continue
        ranks = accuracy_ranks(name, settings.models.accuracy_order(name)) if mode == "any" else {}
        components = [part.id.hex() for part in served[name].components]
        whole_models = [served[one] for one in sorted(ranks, key=ranks.__getitem__) if one in served]
        less: list[Variant | Application] = [*whole_models]
        chains = {tuple(part.id.hex() for part in served[one].components) for one in ranks if one in served}
        most = settings.models.variants
        alike = less_accurate(components, _equivalents(name, checkpoints, served, alike=True), ranks, most)
        less += [one for one in alike if swapped(components, one.swaps) not in chains]
        less = less[: most // 2]
        every = [*make_variants(components, _equivalents(name, checkpoints, served), most - len(less)), *less]
        if most and len(whole_models) > most // 2:
            log.warning(TOO_FEW, name, len(whole_models), most // 2, name, 2 * len(whole_models))
        elif most and not every:
            log.warning(NO_PAIR, name, mode)
        own = served[name]
        for number, one in enumerate(every, start=1):
            made = _made(one, f"{name}~{number}", own, os.path.realpath(checkpoints[own.name].path), settings, dtype)
            rank = ranks.get(one.served_as, 0) if isinstance(one, Application) else one.rank
            found.append(replace(made, variant_of=own.name, rank=rank, created=own.created))
    return found


def _made(one: Variant | Application, id: str, own: Application, folder: str, settings: Settings, dtype: str) -> Application:
    """Return a variant as an application of its own.

    one: its swaps, or the model that stands in as a whole. folder: of its own model.
    """
    if isinstance(one, Application):
        log.info("%s may serve in the place of %s", one.served_as, own.served_as)
        return replace(one, name=id, model="", family="", threshold=None, max_length=own.max_length, on_demand=False)
    checkpoint = open_source(variant_source(folder, one.swaps))
    specs = checkpoint.specs(settings.worker_memory.page_size, dtype)
    log.info("%s may be served by a chain with blocks of %s", own.served_as, ", ".join(one.donors))
    return application_of(id, checkpoint, specs, own.max_length, 1)


def _equivalents(
    name: str, checkpoints: Mapping[str, Checkpoint], served: Mapping[str, Application], *, alike: bool = False
) -> Iterator[Equivalent]:
    """Yield the blocks of other served models of the same zoo that may stand in for one of this model's.

    served: by model. alike: the ones that look alike, and lose too many answers to count as equivalent.
    """
    opened = {model: checkpoints[one.name] for model, one in served.items()}
    root = "" if opened[name].exits else _zoo(opened[name])
    own = [part.id.hex() for part in served[name].components]
    for donor, other in served.items() if root else ():
        if donor == name or opened[donor].deltas or _zoo(opened[donor]) != root:
            continue
        known = stored_equivalences(Zoo(root), own, [part.id.hex() for part in other.components])
        for pair in known.pairs if known is not None else ():
            looks = known is not None and pair.swappable and is_similar(pair.figures, known.limits)
            if pair.counts if not alike else looks and not pair.counts:
                swap = Swap(pair.first, pair.first + len(pair.block), pair.replacement)
                yield Equivalent(swap, donor, pair.lost, pair.kl)


def _zoo(checkpoint: Checkpoint) -> str:
    """Return the root of the zoo that a checkpoint lies in, with links resolved; "" for none."""
    folder = Path(os.path.realpath(checkpoint.path))
    return str(folder.parent.parent) if (folder / CHAIN).is_file() else ""

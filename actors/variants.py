"""Variants of the served applications: chains with blocks of others that a zoo knows as equivalent. Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..gpu.weights.checkpoint import Checkpoint
from ..policies.adaptive.variants import Equivalent, Swap, make_variants, variant_source
from ..policies.control.events import Application
from ..zoo.equivalence.records import stored_equivalences
from ..zoo.layout import CHAIN
from ..zoo.source import open_source
from ..zoo.zoo import Zoo
from .checkpoints import OpenedCheckpoints, application_of
from .settings.errors import SettingsError
from .settings.settings import Settings
from .sizing import serving_dtype

log = logging.getLogger("blockwright.cluster")
NO_PAIR = (
    "adaptive.%s is equal, but no served application has an equivalent block; compare them: blockwright zoo equivalence, "
    "and serve the other one, too"
)


def check_adaptive(settings: Settings, checkpoints: Mapping[str, Checkpoint]) -> None:
    """Raise SettingsError if the setting ``adaptive`` names an application that can have no variants."""
    for name in (name for name, mode in settings.models.adaptive.items() if mode != "off"):
        if not _zoo(checkpoints[name]):
            raise SettingsError(
                f"adaptive.{name} is equal, but {name} is no application of a zoo, which has the equivalences; add it: "
                "blockwright zoo add, and serve ZOO/chains/NAME"
            )
        if checkpoints[name].deltas:
            raise SettingsError(f"adaptive.{name} is equal, but {name} is an adapter; only a whole model has variants")
        if checkpoints[name].exits:
            raise SettingsError(f"adaptive.{name} is equal, but {name} is a family; set quality, or leave adaptive out")
        if settings.parameter_drops.is_on:
            raise SettingsError(f"adaptive.{name} is equal, and overload is on; they are not used together: choose one")
        if settings.worker.stages(name) > 1:
            raise SettingsError(f"adaptive.{name} is equal, and pipelines.{name} spreads it over workers; choose one")


def variants_of(opened: OpenedCheckpoints, applications: Sequence[Application], settings: Settings) -> list[Application]:
    """Return the variants that the setting ``adaptive`` asks for, made of the served applications."""
    found = []
    served = {one.name: one for one in applications}
    dtype = serving_dtype(settings.worker, {name: one.config for name, one in opened.checkpoints.items()})
    for name, mode in settings.models.adaptive.items():
        if mode == "off" or name not in served:
            continue
        own = served[name]
        folder = os.path.realpath(opened.checkpoints[name].path)
        variants = make_variants([part.id.hex() for part in own.components], _equivalents(name, opened, served))
        if not variants:
            log.warning(NO_PAIR, name)
        for number, variant in enumerate(variants, start=1):
            checkpoint = open_source(variant_source(folder, variant.swaps))
            specs = checkpoint.specs(settings.worker_memory.page_size, dtype)
            made = application_of(f"{name}~{number}", checkpoint, specs, own.max_length, 1)
            found.append(replace(made, variant_of=name, created=own.created))
            log.info("%s may serve in the place of %s, with blocks of %s", made.name, name, ", ".join(variant.donors))
    return found


def _equivalents(name: str, opened: OpenedCheckpoints, served: Mapping[str, Application]) -> Iterator[Equivalent]:
    """Yield the blocks of other served applications of the same zoo that may stand in for one of this application's."""
    zoo, own = Zoo(_zoo(opened.checkpoints[name])), [part.id.hex() for part in served[name].components]
    for donor, other in served.items():
        if donor == name or opened.checkpoints[donor].deltas or _zoo(opened.checkpoints[donor]) != str(zoo.layout.root):
            continue
        known = stored_equivalences(zoo, own, [part.id.hex() for part in other.components])
        for pair in known.pairs if known is not None else ():
            if pair.counts:
                swap = Swap(pair.first, pair.first + len(pair.block), pair.equivalent)
                yield Equivalent(swap, donor, pair.lost, pair.kl)


def _zoo(checkpoint: Checkpoint) -> str:
    """Return the root of the zoo that a checkpoint lies in, with links resolved; "" for none."""
    folder = Path(os.path.realpath(checkpoint.path))
    return str(folder.parent.parent) if (folder / CHAIN).is_file() else ""

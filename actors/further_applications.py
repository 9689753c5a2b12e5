"""Adapters of the folder ``adapters``, and models added before a restart: applications that no setting names one by one.

Reads the file system and changes nothing. Each one is opened by itself, so a broken one does not keep others from being
served. They are loaded when requests ask for them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..gpu.errors import CheckpointError
from ..gpu.weights.adapter import is_adapter, open_adapter, trained_on
from ..gpu.weights.checkpoint import Checkpoint
from ..policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base, is_same, named_base, named_by_path
from ..policies.drafts.choice import absent_drafters
from ..policies.requests.refusal import Refusal, RequestRefused
from ..zoo.source import open_source
from .app_roots import check_name, folder_below
from .changes_file import Changes
from .checkpoints import OpenedCheckpoints, stored_base, whole_model, with_tiers
from .gateway.port import NewApplication
from .settings.errors import SettingsError
from .settings.models import ModelSettings
from .settings.settings import Settings
from .sizing import WorkerLimits, check_model, worker_limits


def roots_of(models: ModelSettings) -> str:
    """Return the folders from which models may be added at run time, separated by commas."""
    return ",".join(filter(None, (models.app_roots, models.adapters)))


def adapter_named(models: ModelSettings, name: str) -> NewApplication | None:
    """Return the adapter of that name in the folder ``adapters``, or None."""
    try:
        check_name(name)
    except RequestRefused:
        return None
    if not models.adapters or "/" in name:
        return None
    path = Path(os.path.realpath(Path(models.adapters).expanduser())) / name
    if not is_adapter(path):
        return None
    base, defaults = models.bases.get(name, ""), models.application_defaults.get(name, "")
    return NewApplication(name, str(path), base, defaults=defaults, on_demand=True)


def base_of(new: NewApplication, roots: str, wholes: Collection[WholeModel]) -> WholeModel | None:
    """Return the model to put the adapter ``new`` on; None for a whole checkpoint. Raises RequestRefused."""
    folder = folder_below(roots, new.path)
    if not is_adapter(folder):
        if new.base:
            message = f"{folder} is a whole checkpoint, which has no base; leave base out"
            raise RequestRefused(Refusal.INVALID, message, param="base")
        return None
    try:
        found = named_base(new.base, wholes) if new.base else choose_base(trained_on(folder), wholes)
    except AmbiguousBase as ambiguous:
        remedy = f"--set bases.{new.name}=NAME" if new.on_demand else "base, or --base"
        message = f"{folder} is an adapter; {ambiguous.why}; name its base ({remedy})"
        raise RequestRefused(Refusal.INVALID, message, param="base") from None
    if found is not None and new.base_path and not is_same(new.base_path, found):
        if (moved := named_by_path(new.base_path, wholes)) is not None:
            return moved
        message = (
            f"{folder} was put on {new.base} from {new.base_path}, but {found.model} is {found.checkpoint} now; serve that "
            "base, or add the adapter again"
        )
        raise RequestRefused(Refusal.INVALID, message, param="base")
    if found is None:
        there = ", ".join(one.model for one in wholes)
        why = f"base {new.base!r} is not a whole checkpoint that is served" if new.base else "no whole checkpoint is served"
        remedy = f"name one of {there}" if there else "add the checkpoint that it was trained on first"
        raise RequestRefused(Refusal.INVALID, f"{folder} is an adapter, but {why}; {remedy}", param="base")
    return found


def check_places(models: ModelSettings) -> None:
    """Raise SettingsError for a setting that names a file as a folder, or a file whose folder does not exist.

    A folder of models that does not exist may come later, on a disk that is mounted.
    """
    named = [("adapters", models.adapters), *(("app_roots", part.strip()) for part in models.app_roots.split(","))]
    for name, text in named:
        folder = Path(text).expanduser()
        if text and folder.exists() and not folder.is_dir():
            raise SettingsError(f"{name}: {text} is a file; name a folder that holds a folder for each model")
    if models.adapters and is_adapter(Path(models.adapters).expanduser()):
        remedy = f"name the folder that it is in, or serve it alone with --app NAME={models.adapters}"
        raise SettingsError(f"adapters: {models.adapters} is itself an adapter; {remedy}")
    if not models.apps_file:
        return
    file = Path(models.apps_file).expanduser().absolute()
    if not file.parent.is_dir():
        raise SettingsError(f"apps_file: there is no folder {file.parent}; make it, or name a file in another one")
    if file.is_dir():
        raise SettingsError(f"apps_file: {models.apps_file} is a folder; name a file, like {file / 'apps.json'}")


def absent_models(settings: Settings, opened: Collection[str]) -> list[str]:
    """Return a sentence for each entry of a setting that names a model which is not served, and can only be added later.

    ``opened``: the ids of the models that are served, tiers as well. Where none can be added, the entry is refused instead.
    """
    named: dict[str, Collection[str]] = {
        "drafts": settings.drafting.drafts,
        "theta": settings.tiering.theta,
        "exits": settings.models.exits,
    }
    absent = [(setting, name) for setting, entries in named.items() for name in entries if name not in {*opened, "*"}]
    reason = "names no model that is served now; it counts once a model is added under that id"
    drafters = absent_drafters(settings.drafting.drafts, lambda model: model not in opened)
    return [*[f"{setting}.{name} {reason}" for setting, name in absent], *drafters]


def open_further(settings: Settings, opened: OpenedCheckpoints, changes: Changes) -> tuple[OpenedCheckpoints, list[str]]:
    """Open the applications beside ``opened``.

    Also return a sentence for each that is not served, or not as it was left.
    """
    warnings = [*changes.faults, *_overruled(settings.models, changes)]
    checkpoints = dict(opened.checkpoints)
    bases = dict(opened.bases)
    defaults = dict(opened.defaults)
    families = dict(opened.families)
    models = {name: one.config for name, one in opened.checkpoints.items()}
    limits = worker_limits(settings.worker, models)
    for new in _further(settings.models, changes, warnings):
        try:
            checkpoint, base = _open(new, settings, limits, checkpoints, families)
            found, tiers = with_tiers({new.name: checkpoint}, settings.models)
        except RequestRefused as refused:
            warnings.append(f"{new.name} is not served: {refused.message}")
        except (CheckpointError, SettingsError, OSError) as error:
            warnings.append(f"{new.name} is not served: {error}")
        else:
            checkpoints |= found
            families |= tiers
            defaults |= dict.fromkeys(found, new.defaults)
            bases |= {new.name: base} if base else {}
    lazy = frozenset(checkpoints.keys() - opened.checkpoints.keys())
    more: dict[str, Any] = {"bases": bases, "defaults": defaults, "on_demand": lazy, "families": families}
    return replace(opened, checkpoints=checkpoints, **more), warnings


def _open(
    new: NewApplication,
    settings: Settings,
    limits: WorkerLimits,
    here: Mapping[str, Checkpoint],
    families: Mapping[str, str],
) -> tuple[Checkpoint, str]:
    """Open one and name its base. Raises RequestRefused, CheckpointError, SettingsError or OSError."""
    there = {name: one for name, one in here.items() if one.source == one.path and not one.deltas}
    wholes = [whole_model(name, one, families) for name, one in there.items()]
    base, folder = base_of(new, roots_of(settings.models) or new.path, wholes), os.path.realpath(new.path)
    made = open_source(folder) if base is None else open_adapter(folder, here[base.model])
    check_model(settings, limits, new.name, made.config)
    return made, base.model if base is not None else stored_base(made, wholes) if made.deltas else ""


def _further(models: ModelSettings, changes: Changes, warnings: list[str]) -> Iterator[NewApplication]:
    """Yield the applications to serve beside the ones in the settings: additions at run time, whole models first."""
    taken = {*models.applications}
    for name, new in sorted(changes.added.items(), key=lambda entry: is_adapter(entry[1].path)):
        if name not in taken:
            taken.add(name)
            yield new
    if not models.adapters:
        return
    folder = Path(models.adapters).expanduser()
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        warnings.append(f"adapters: {folder} cannot be listed ({error.strerror}); its adapters are served when it is there")
        return
    if is_adapter(folder):
        warnings.append(
            f"adapters: {folder} is an adapter itself; name the folder that holds it, or serve it with --app NAME={folder}"
        )
    for name in names:
        if name.startswith(".") or name in changes.removed or not is_adapter(folder / name):
            continue
        found = adapter_named(models, name)
        if found is None:
            warnings.append(f"adapters: {folder / name} is not served: its name is no model id; rename the folder")
        elif name not in taken:
            yield found
        elif name in models.applications and os.path.realpath(models.applications[name]) != found.path:
            warnings.append(
                f"adapters: {folder / name} is not served: {name} is {models.applications[name]} by the settings"
            )
    for name in sorted({*models.application_defaults} - {*names, *taken}):
        warnings.append(f"applications.{name} has no path, and {folder} has no adapter of that name yet")


def _overruled(models: ModelSettings, changes: Changes) -> Iterator[str]:
    """Yield a sentence for each change that a setting overrules."""
    for name, path in models.applications.items():
        added = changes.added.get(name)
        if added is not None and os.path.realpath(path) != os.path.realpath(added.path):
            yield f"{name} was added from {added.path} while the server ran, but the settings name {path}, which is served"
        elif name in changes.removed:
            yield f"{name} was removed while the server ran, but the settings name it, so it is served"
    if changes.default and models.default_model not in ("", changes.default):
        yield f"{changes.default} was made the default while the server ran, but default_model is {models.default_model}"

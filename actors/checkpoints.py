"""The checkpoints that the settings name: whole models, and adapters over one of them. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.actors.config import Settings, SettingsError
from blockwright.actors.controller.messages import Application
from blockwright.actors.sizing import max_lengths, serving_dtype, spans
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.weights.adapter import is_adapter, open_adapter, trained_on
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.cluster.application_life import default_base
from blockwright.zoo.source import open_source


def open_checkpoints(settings: Settings) -> dict[str, Checkpoint]:
    """By application. Raises CheckpointError, SettingsError: one sentence."""
    opened = {name: open_source(path) for name, path in settings.applications.items() if not is_adapter(path)}
    for name in settings.bases:
        if name in opened:
            raise SettingsError(f"bases.{name} names a whole checkpoint; only an adapter has a base: leave it out")
    found = {}
    for name, path in settings.applications.items():
        if name in opened:
            found[name] = opened[name]
            continue
        wholes = {settings.applications[one]: one for one in reversed(opened)}  # of two of one folder the first
        ordered = [(one, settings.applications[one]) for one in opened]
        base = settings.bases.get(name) or wholes.get(default_base(trained_on(path), ordered), "")
        if base not in opened:
            if not opened:
                raise SettingsError(
                    f"application {name} is an adapter, but no whole checkpoint is served; serve the one that it was "
                    f"trained on, and the adapter beside it: --app {name}={path}"
                )
            raise SettingsError(
                f"application {name} is an adapter and its base {base!r} is not a whole checkpoint that is served, too; "
                f"serve one before it and name it in bases.{name} (there are: {', '.join(opened)})"
            )
        found[name] = open_adapter(path, opened[base])
    return found


def hash_applications(checkpoints: dict[str, Checkpoint], settings: Settings) -> list[Application]:
    """Hash every tensor once, bases before their adapters. It takes seconds, so call it on a thread."""
    models = {name: checkpoint.config for name, checkpoint in checkpoints.items()}
    lengths, dtype, over = max_lengths(settings, models), serving_dtype(settings, models), spans(settings)
    for checkpoint in checkpoints.values():
        if checkpoint.source == checkpoint.path:
            checkpoint.hashes()
    applications = []
    for name, checkpoint in checkpoints.items():
        specs = checkpoint.specs(settings.page_size, dtype)
        applications.append(application_of(name, checkpoint, specs, lengths[name], over[name]))
    return applications


def application_of(name: str, checkpoint: Checkpoint, specs: Sequence[ComponentSpec], length: int, span: int) -> Application:
    """A checkpoint that was hashed, as the controller knows it. Raises SettingsError."""
    if checkpoint.virtual >= length:
        raise SettingsError(
            f"{name} has {checkpoint.virtual} virtual tokens before every prompt, but a sequence may have {length}; raise "
            "max_model_len"
        )
    return Application(
        name,
        str(checkpoint.source),
        tuple(spec.component for spec in specs),
        length,
        span,
        tuple(spec.hashes for spec in specs),
        str(checkpoint.path) if checkpoint.source != checkpoint.path else "",
        tuple({role: ref.nbytes for role, ref in spec.tensors.items()} for spec in specs),
        virtual=checkpoint.virtual,
    )

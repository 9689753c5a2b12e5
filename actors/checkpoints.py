"""Opening and hashing of the checkpoints that the settings name: whole models, and adapters over them. Loads no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..gpu.errors import CheckpointError
from ..gpu.model.config import ComponentSpec
from ..gpu.weights.adapter import is_adapter, open_adapter, trained_on
from ..gpu.weights.checkpoint import Checkpoint
from ..gpu.weights.identity import checkpoint_id
from ..gpu.weights.token_table import same_tokens, token_table
from ..policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base, is_named
from ..policies.control.events import Application
from ..policies.drafts.choice import exits_below, exits_fault, models_fault
from ..policies.drafts.draft_model import DraftParty
from ..policies.model.tier_choice import auto_id, family_of_auto
from ..policies.model.tiers import family_of, no_tier, tier_id
from ..zoo.records import read_chain
from ..zoo.source import open_source
from .gateway.port import ModelInfo
from .settings.errors import SettingsError
from .settings.models import ModelSettings
from .settings.settings import Settings
from .sizing import max_lengths, serving_dtype
from .source_checks import check_sources

log = logging.getLogger("blockwright.cluster")


@dataclass(frozen=True, slots=True)
class OpenedCheckpoints:
    """The checkpoints to serve, by application.

    ``bases`` has for each adapter the id of its whole model. ``assumed`` are adapters that named no base, or another one,
    and were put on the only one. ``defaults``: as in ``ModelInfo``. ``on_demand`` are the applications that no setting names
    one by one; they are loaded when requests ask for them. ``families`` has for each lower tier the id of its family.
    ``drafting`` has for each chain that only drafts the application that it drafts for.
    """

    checkpoints: dict[str, Checkpoint]
    bases: dict[str, str]
    assumed: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    on_demand: frozenset[str] = frozenset()
    families: Mapping[str, str] = field(default_factory=dict)
    drafting: Mapping[str, str] = field(default_factory=dict)


def open_checkpoints(settings: Settings, *, again: bool = False) -> OpenedCheckpoints:
    """Open what the settings name, whole models first. Raises CheckpointError or SettingsError: one sentence.

    ``again``: an earlier head has opened them.
    """
    check_sources(settings.sources, again=again)
    wholly = {name: open_source(path) for name, path in settings.models.applications.items() if not is_adapter(path)}
    opened, families = with_tiers(wholly, settings.models)
    for name in settings.models.bases:
        if name in opened:
            raise SettingsError(f"bases.{name} names a whole checkpoint; only an adapter has a base: leave it out")
    wholes = [whole_model(name, one, families) for name, one in opened.items() if not one.deltas]
    found = dict[str, Checkpoint]()
    bases = dict[str, str]()
    assumed = set[str]()
    for name, path in settings.models.applications.items():
        if name in opened:
            found |= {one: opened[one] for one in opened if name in (one, families.get(one))}
            if opened[name].deltas:
                bases[name] = stored_base(opened[name], wholes)
            continue
        if not (base := settings.models.bases.get(name, "")):
            chosen = _chosen(name, path, wholes)
            base = chosen.model
            assumed |= set() if is_named(trained_on(path), chosen) else {name}
        bases[name] = base
        if base not in opened:
            raise SettingsError(
                f"application {name} is an adapter and its base {base!r} is not a whole checkpoint that is served, "
                f"too; serve one before it and name it in bases.{name} (there are: {', '.join(opened)})"
            )
        found[name] = open_adapter(path, opened[base])
    _check_named_tiers(settings, found, families)
    check_drafts(settings, found, bases, families)
    for setting in ("tenant_weights", "tenant_kv_share"):
        for name in settings.value(setting):
            if (family := families.get(name, "")) and name not in settings.network.api_keys.values():
                remedy = f"set {setting}.{family}" + (f", or tier_weights.{name}" if setting == "tenant_weights" else "")
                raise SettingsError(f"{setting}.{name} names a tier, which shares the account of its family; {remedy}")
    for name in settings.tiering.tier_weights:
        if name in found and name not in {*families, *families.values()}:
            raise SettingsError(
                f"tier_weights.{name} names a model without tiers; to give it more, set tenant_weights.{name}"
            )
    inherited = {tier: settings.models.application_defaults.get(family, "") for tier, family in families.items()}
    defaults = {**settings.models.application_defaults, **{tier: text for tier, text in inherited.items() if text}}
    return OpenedCheckpoints(found, bases, frozenset(assumed), defaults, families=families)


def _chosen(name: str, path: str, wholes: Sequence[WholeModel]) -> WholeModel:
    """Return the model to put an adapter on if no setting names it. Raises SettingsError."""
    try:
        chosen = choose_base(trained_on(path), wholes)
    except AmbiguousBase as ambiguous:
        raise SettingsError(
            f"application {name} ({path}) is an adapter; {ambiguous.why}; name its base: --set bases.{name}=NAME"
        ) from None
    if chosen is None:
        raise SettingsError(
            f"application {name} is an adapter, but no whole checkpoint is served; serve the one that it was trained on, "
            f"and the adapter beside it: --app {name}={path}"
        )
    return chosen


def _check_named_tiers(settings: Settings, opened: Mapping[str, Checkpoint], families: Mapping[str, str]) -> None:
    """Raise SettingsError if a setting names a tier that its family does not have."""
    named = {"default_model": [settings.models.default_model], "bases": [*settings.models.bases.values()]}
    named |= {
        name: [*settings.value(name)]
        for name in ("pipelines", "drafts", "tenant_weights", "tenant_kv_share", "tier_weights")
    }
    named["tenant_models"] = [one.strip() for models in settings.tenants.tenant_models.values() for one in models.split(",")]
    for setting, names in named.items():
        for name in names:
            family = family_of(name) or family_of_auto(name)
            if name in opened or family not in settings.models.applications or name in settings.network.api_keys.values():
                continue
            if name == auto_id(family) and family in families.values():
                if setting in ("default_model", "tenant_models"):
                    continue
                raise SettingsError(f"{setting} names {name!r}, which is no model but chooses among tiers; name {family}")
            there = no_tier(name, families) or f"{family} has no tiers"
            raise SettingsError(f"{setting} names {name!r}, which is not served; {there}")


def check_drafts(
    settings: Settings,
    opened: Mapping[str, Checkpoint],
    bases: Mapping[str, str],
    families: Mapping[str, str],
    added: Collection[str] | None = None,
) -> None:
    """Raise SettingsError if the setting ``drafts`` names a tier or a model that cannot draft.

    ``added``: only entries of these models, and entries that name them, are checked; None: all.
    """
    entries = settings.drafting.drafts.items()
    modes = {name: mode for name, mode in entries if added is None or name in added or mode in added}
    models = {name: families.get(name, "") for name in opened}
    parties = {
        name: DraftParty.of(name, bases, models, one.config.vocabulary, one.virtual, embeds=one.embeds)
        for name, one in opened.items()
    }
    parties |= {
        auto_id(family): DraftParty(auto_id(family), family, 0, chooses=True) for family in {*families.values()} - {""}
    }
    fault = exits_fault(modes, bases, models) or models_fault(
        modes,
        parties,
        lambda name: exits_below(name, bases.get(name, ""), models),
        lambda one, other: same_tokens(tokens_of(opened[one]), tokens_of(opened[other])),
        more=settings.models.more_may_come,
    )
    if fault:
        raise SettingsError(fault)


def tokens_of(checkpoint: Checkpoint) -> bytes:
    """Return the digest of a model's tokens."""
    own = [str(checkpoint.source)] if checkpoint.source != checkpoint.path else []
    return token_table([*own, str(checkpoint.path)])


def with_tiers(opened: Mapping[str, Checkpoint], models: ModelSettings) -> tuple[dict[str, Checkpoint], dict[str, str]]:
    """Return the checkpoints and, behind each family, its lower tiers; and the family of each tier, by model id.

    Raises CheckpointError or SettingsError.
    """
    found, families = dict[str, Checkpoint](), dict[str, str]()
    for name, checkpoint in opened.items():
        if (asked := models.exit_layers(name)) and checkpoint.deltas:
            raise SettingsError(f"exits.{name} is given, but {name} is an adapter; give the exits of its base")
        family = checkpoint.with_shared_exits(asked, f"exits.{name}") if asked else checkpoint
        found[name] = family
        for layers in family.exits:
            if (tier := tier_id(name, layers)) in opened or tier in models.applications:
                raise SettingsError(
                    f"{tier} is a tier of the family {name}, and another application; give that one another id"
                )
            found[tier], families[tier] = family.at_exit(layers), name
        if family.exits and (chosen := auto_id(name)) in opened.keys() | models.applications.keys():
            raise SettingsError(
                f"{chosen} chooses among the tiers of {name}, and is another application; give that one another id"
            )
    return found, families


def whole_model(name: str, checkpoint: Checkpoint, families: Mapping[str, str]) -> WholeModel:
    """Return a whole model as ``choose_base`` takes it."""
    return WholeModel(name, located(checkpoint), family=families.get(name, ""))


def located(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's source with every link resolved, as names of bases are compared with it."""
    return os.path.realpath(checkpoint.source) if checkpoint.source != checkpoint.path else checkpoint.beneath


def stored_base(checkpoint: Checkpoint, wholes: Iterable[WholeModel]) -> str:
    """Return the id of the model that an adapter of a zoo was added over.

    This is the id of the served model, or else its name in the zoo.
    """
    base = read_chain(checkpoint.source).base
    beside = os.path.realpath(checkpoint.source.parent / base)
    return next((one.model for one in wholes if one.checkpoint == beside), base)


def model_info(opened: OpenedCheckpoints, name: str, length: int, created: int) -> ModelInfo:
    """Return what gateways know of a checkpoint before it is served. ``length``: tokens of a sequence."""
    checkpoint = opened.checkpoints[name]
    return ModelInfo(
        name,
        os.path.realpath(checkpoint.path),
        length - checkpoint.virtual,
        created,
        False,
        virtual=checkpoint.virtual,
        adapter=located(checkpoint) if checkpoint.source != checkpoint.path else "",
        base=opened.bases.get(name, ""),
        defaults=opened.defaults.get(name, ""),
        family=opened.families.get(name, ""),
        threshold=checkpoint.thresholds.get(checkpoint.tier),
    )


def hash_applications(opened: OpenedCheckpoints, settings: Settings) -> list[Application]:
    """Hash every tensor once, bases before their adapters. Takes seconds, so call it on a thread."""
    checkpoints = opened.checkpoints
    models = {name: checkpoint.config for name, checkpoint in checkpoints.items()}
    lengths, dtype = max_lengths(settings.requests, models), serving_dtype(settings.worker, models)
    for name, checkpoint in checkpoints.items():
        if checkpoint.source == checkpoint.path and name not in opened.on_demand:
            checkpoint.hashes()
    applications = []
    for name, checkpoint in checkpoints.items():
        lazy = name in opened.on_demand
        family = opened.families.get(name, "")
        span = settings.worker.stages(name, family) if name not in opened.drafting else 1
        try:
            specs = checkpoint.specs(settings.worker_memory.page_size, dtype)
            made = application_of(name, checkpoint, specs, lengths[name], span, opened.bases.get(name, ""), family)
        except (CheckpointError, SettingsError, OSError) as error:
            if not lazy:
                raise
            log.warning("%s is not served: %s", name, error)
            continue
        drafts_for = opened.drafting.get(name, "")
        applications.append(replace(made, defaults=opened.defaults.get(name, ""), on_demand=lazy, drafts_for=drafts_for))
    return applications


def application_of(
    name: str,
    checkpoint: Checkpoint,
    specs: Sequence[ComponentSpec],
    length: int,
    span: int,
    base_model: str = "",
    family: str = "",
) -> Application:
    """Return a hashed checkpoint in the controller's form. Raises SettingsError.

    ``base_model`` is the id of the model that an adapter is put on, ``family`` the id of a lower tier's family.
    """
    if checkpoint.virtual >= length:
        raise SettingsError(
            f"{name} has {checkpoint.virtual} virtual tokens before every prompt, but a sequence may have {length}; raise "
            "max_model_len"
        )
    components = tuple(spec.component for spec in specs)
    return Application(
        name,
        located(checkpoint),
        components,
        length,
        span,
        tuple(spec.hashes for spec in specs),
        checkpoint.beneath if checkpoint.source != checkpoint.path else "",
        tuple({role: ref.nbytes for role, ref in spec.tensors.items()} for spec in specs),
        virtual=checkpoint.virtual,
        base_model=base_model,
        family=family,
        threshold=checkpoint.thresholds.get(checkpoint.tier),
        content=checkpoint_id([c.shared for c in components], [c.delta for c in components]),
        base_content=checkpoint.over.content() if checkpoint.over is not None else b"",
    )

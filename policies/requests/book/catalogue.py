"""The gateway's catalogue: its models, their readiness, and requests that can never be served.

Owns what the settings say of the models. Models that were added later, and the state of all models, are in the routing
table, to which the catalogue passes the controller's publications.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...model.tier_choice import auto_id, family_of_auto, starting_tier
from ...model.tiers import layers_of, no_tier
from ...nearest import suggestion
from ..admission import admit
from ..refusal import SHORTER_ANSWER, Refusal, RequestRefused
from ..routes_changed import RoutesChanged
from ..routing_table import RoutingTable
from .values import Generation, ModelInfo, Readiness


class Catalogue:
    """The models of one gateway (see the module)."""

    def __init__(self, models: Iterable[ModelInfo], table: RoutingTable) -> None:
        self.configured = {model.id: model for model in models}
        self._table = table

    def learn(self, update: RoutesChanged, now: float) -> None:
        """Apply a publication of the controller to the routing table."""
        self._table.update(update, now)

    def models(self) -> list[ModelInfo]:
        """List the served models: in configuration order, then in the order they were added."""
        found = [self._model(model, application) for model, application in self._table.models.items()]
        return self._with_auto(found) if any(info.family for info in found) else found

    def _with_auto(self, found: list[ModelInfo]) -> list[ModelInfo]:
        """Return the models with the tiers of each family entered at its top, and ``NAME:auto`` behind the last tier."""
        tiers: dict[str, list[ModelInfo]] = {}
        for info in found:
            if info.family in self._table.models:
                tiers.setdefault(info.family, []).append(info)
        for lower in tiers.values():
            lower.sort(key=lambda info: layers_of(info.id))
        made = []
        for info in found:
            lower = tiers.get(info.id, [])
            made.append(replace(info, tiers=tuple(one.id for one in lower)) if lower else info)
        for family, lower in tiers.items():
            top = next(info for info in made if info.id == family)
            if (chosen := auto_id(family)) not in self._table.models:
                last = max(i for i, info in enumerate(made) if info.id == family or info.family == family)
                made.insert(last + 1, _auto(chosen, top, lower))
        return made

    def start(self, model: str) -> str:
        """Return the model on which requests to ``model`` start: of ``NAME:auto`` a lower tier, else itself."""
        if family_of_auto(model) not in self._table.models or model in self._table.models:
            return model
        return next((info.starts for info in self.models() if info.id == model), model)

    def _model(self, model: str, application: str) -> ModelInfo:
        table = self._table
        chain = self._table.chains.get(application)
        configured = self.configured.get(model)
        if configured is None:
            assert chain is not None, "a model is neither configured nor published"
            more: dict[str, Any] = {"adapter": chain.adapter, "family": chain.family, "threshold": chain.threshold}
            configured = ModelInfo(model, chain.checkpoint, chain.context, chain.created, False, **more)
        virtual = chain.virtual if chain is not None else configured.virtual
        return ModelInfo(
            model,
            chain.checkpoint if chain is not None and chain.checkpoint else configured.checkpoint,
            chain.context if chain is not None else configured.max_length,
            chain.created if chain is not None and chain.created else configured.created,
            ready=self._state(application) in ("ready", "on demand"),
            parent=table.bases.get(model),
            rooms=tuple(room - virtual for room in table.rooms(application)),
            longest=max(0, table.room.get(application, 0) - virtual),
            virtual=virtual,
            base=chain.base if chain is not None else configured.base,
            defaults=chain.defaults if chain is not None else configured.defaults,
            adapter=chain.adapter if chain is not None and chain.checkpoint else configured.adapter,
            family=chain.family if chain is not None else configured.family,
            threshold=chain.threshold if chain is not None else configured.threshold,
            varies=application in table.variants,
        )

    def virtual(self, model: str) -> int:
        """Return the number of virtual tokens before a model's prompts."""
        return self._model(model, self._table.models[model]).virtual

    def ready(self, draining: bool) -> Readiness:
        applications = {model: self._state(name) for model, name in self._table.models.items()}
        if draining:
            return Readiness(False, "the server is shutting down", 5.0, applications)
        if "ready" in applications.values():
            return Readiness(True, "", 0.0, applications)
        waiting = "waiting" in applications.values()
        return Readiness(False, "no worker is up" if waiting else "models are loading", 1.0, applications)

    def _state(self, application: str) -> str:
        if self._table.routes[application]:
            return "ready"
        if application in self._table.failed:
            return "failed"
        if self._table.absent(application):
            return "on demand"
        return "waiting" if application in self._table.served else "loading"

    def unknown(self, model: str) -> RequestRefused | None:
        """Return the refusal for a model that is not served or no longer served, else None."""
        if model in self._table.models:
            return None
        tiers = [one for one in self._table.models if self._model(one, self._table.models[one]).family]
        there = no_tier(model, tiers) or suggestion(model, [*self._table.models], repr)
        return RequestRefused(Refusal.UNKNOWN_MODEL, f"model {model!r} does not exist; {there}")

    def unfit(self, generation: Generation, model: str) -> RequestRefused | None:
        """Return the refusal for a sequence that no worker could ever hold for the model, else None."""
        application = self._table.models[model]
        prompt = len(generation.prompt)
        answer = generation.max_tokens
        if not prompt or answer < (0 if generation.pooled else 1):
            return RequestRefused(Refusal.INVALID, "prompt and max_tokens need at least one token each")
        info = self._model(model, application)
        limit = info.max_length
        if prompt + answer > limit:
            message = (
                f"the prompt has {prompt} tokens and the answer up to {answer}, together more than the {limit} of model "
                f"{model!r}; shorten the prompt or {SHORTER_ANSWER}"
            )
            if generation.pooled:
                message = f"the text has {prompt} tokens, more than the {limit} of model {model!r}; shorten it"
            return RequestRefused(Refusal.TOO_LONG, message)
        room = self._table.room.get(application)
        sentence = None if room is None else admit(prompt + answer, room - info.virtual)
        return RequestRefused(Refusal.TOO_LONG, sentence) if sentence else None


def _auto(model: str, top: ModelInfo, lower: list[ModelInfo]) -> ModelInfo:
    """Return the model that chooses between a lower tier and the top. It holds what both hold."""
    stored = {one.id: one.threshold for one in lower if one.threshold is not None}
    start = next(one for one in lower if one.id == starting_tier([info.id for info in lower], stored))
    return replace(
        top,
        id=model,
        max_length=min(top.max_length, start.max_length),
        ready=top.ready and start.ready,
        parent=top.id,
        family=top.id,
        tiers=(),
        starts=start.id,
        threshold=start.threshold,
    )

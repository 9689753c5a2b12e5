"""What the gateway serves: its models, whether they are ready, and which requests can never be theirs.

Owns what the settings say of the models; what is served beside them, and what has become of all, is in the routing table,
to which it hands what the controller publishes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...policies.requests.admission import admit
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.routing_table import RoutingTable
from ...policies.sweep.events import RoutesChanged
from .port import Generation, ModelInfo, Readiness


class Catalogue:
    """See the module."""

    def __init__(self, models: Iterable[ModelInfo], table: RoutingTable) -> None:
        self.configured = {model.id: model for model in models}
        self._table = table

    def learn(self, update: RoutesChanged, now: float) -> None:
        """The controller has published this."""
        self._table.update(
            update.version,
            update.chains,
            update.routes,
            update.capacity,
            now,
            since=update.since,
            withdrawn=update.withdrawn,
            draining=update.draining,
            ended=update.ended,
            removed=update.removed,
            on_demand=update.on_demand,
            most=update.most,
            failed=update.failed,
            default=update.default,
        )

    def models(self) -> list[ModelInfo]:
        """What is served: in the order of the configuration, then as it was added."""
        return [self._model(model, application) for model, application in self._table.models.items()]

    def _model(self, model: str, application: str) -> ModelInfo:
        table, chain, configured = self._table, self._table.chains.get(application), self.configured.get(model)
        if configured is None:
            assert chain is not None, "a model is neither configured nor published"
            configured = ModelInfo(model, chain.checkpoint, chain.context, chain.created, False, adapter=chain.adapter)
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
        )

    def virtual(self, model: str) -> int:
        """Virtual tokens before its prompts."""
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
        """For a model that is not served, or no more."""
        if model in self._table.models:
            return None
        served = ", ".join(self._table.models)
        return RequestRefused(Refusal.UNKNOWN_MODEL, f"model {model!r} does not exist; there are: {served}")

    def unfit(self, generation: Generation) -> RequestRefused | None:
        """For a sequence that no worker could ever hold."""
        application, prompt, answer = (
            self._table.models[generation.application],
            len(generation.prompt),
            generation.max_tokens,
        )
        if not prompt or answer < 1:
            return RequestRefused(Refusal.INVALID, "prompt and max_tokens need at least one token each")
        info = self._model(generation.application, application)
        limit = info.max_length
        if prompt + answer > limit:
            message = (
                f"the prompt has {prompt} tokens and the answer up to {answer}, together more than the {limit} of model "
                f"{generation.application!r}; shorten the prompt or lower max_tokens"
            )
            return RequestRefused(Refusal.TOO_LONG, message)
        room = self._table.room.get(application)
        sentence = None if room is None else admit(prompt + answer, room - info.virtual)
        return RequestRefused(Refusal.TOO_LONG, sentence) if sentence else None

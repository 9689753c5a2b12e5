"""What the gateway serves: its models, whether they are ready, and which requests can never be theirs.

Owns the configured models; what has become of them it reads from the routing table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blockwright.actors.gateway.port import Generation, ModelInfo, Readiness
from blockwright.policies.requests.admission import admit
from blockwright.policies.requests.refusal import Refusal, Refused
from blockwright.policies.requests.routing_table import RoutingTable


class Catalogue:
    """See the module."""

    def __init__(self, models: Iterable[ModelInfo], table: RoutingTable) -> None:
        self.configured = {model.id: model for model in models}
        self._table = table

    def models(self) -> list[ModelInfo]:
        """The applications served, in the order of the configuration."""
        table = self._table
        return [
            replace(
                model,
                max_length=table.max_length.get(model.id, model.max_length),
                ready=bool(table.routes[model.id]),
                parent=table.bases.get(model.id),
                rooms=table.rooms(model.id),
            )
            for model in self.configured.values()
            if model.id not in table.withdrawn
        ]

    def ready(self, draining: bool) -> Readiness:
        applications = {
            model.id: "ready" if model.ready else "waiting" if model.id in self._table.served else "loading"
            for model in self.models()
        }
        if draining:
            return Readiness(False, "the server is shutting down", 5.0, applications)
        if "ready" in applications.values():
            return Readiness(True, "", 0.0, applications)
        waiting = "waiting" in applications.values()
        return Readiness(False, "no worker is up" if waiting else "models are loading", 1.0, applications)

    def unknown(self, application: str) -> Refused | None:
        """For a model that is not served, or no more."""
        if application in self.configured and application not in self._table.withdrawn:
            return None
        served = ", ".join(model.id for model in self.models())
        return Refused(Refusal.UNKNOWN_MODEL, f"model {application!r} does not exist; there are: {served}")

    def unfit(self, generation: Generation) -> Refused | None:
        """For a sequence that no worker could ever hold."""
        application, prompt, answer = generation.application, len(generation.prompt), generation.max_tokens
        if not prompt or answer < 1:
            return Refused(Refusal.INVALID, "prompt and max_tokens need at least one token each")
        limit = self._table.max_length.get(application, self.configured[application].max_length)
        if prompt + answer > limit:
            message = (
                f"the prompt has {prompt} tokens and the answer up to {answer}, together more than the {limit} of model "
                f"{application!r}; shorten the prompt or lower max_tokens"
            )
            return Refused(Refusal.TOO_LONG, message)
        sentence = admit(prompt + answer, self._table.room.get(application, prompt + answer))
        return Refused(Refusal.TOO_LONG, sentence) if sentence else None

"""Variants in a simulated cluster: equivalent models whose chains serve requests of another one.

An equivalent model's chain is the variant all of whose blocks come from that model, so it shares that model's pages. The
gateway compares the routes of both by the live function, with the pages that it has sent there itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..policies.model.chain import Chain, Route
from ..policies.model.lineage import page_hashes
from ..policies.prediction.instance import Instance
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.known_pages import KnownPages
from ..policies.requests.paces import Paces
from ..policies.requests.standing import RouteView
from ..policies.sweep.events import Submission
from .model_spec import ModelSpec


class SimulatedVariants:
    """The variants of each model, and the pages that instances are known to have (see the module).

    chains: of each model, on any instance.
    instances: by place.
    paces: of all devices.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        chains: Mapping[str, Chain],
        instances: Sequence[Instance | PipelineInstance],
        paces: Paces,
    ) -> None:
        self.equivalents = {model.name: model.equivalents for model in models}
        self._varied = {name for model in models if model.equivalents for name in (model.name, *model.equivalents)}
        self._chains = chains
        self._instances = instances
        self._paces = paces
        self._pages = KnownPages()

    def view(self, tokens: Sequence[int], salt: bytes, total: int, ways: Iterable[tuple[int, Route]]) -> RouteView:
        """Return what is known of a request for the comparison of routes, which are given with their places.

        tokens: all that it has.
        total: most that it may reach.
        """
        hashes = dict[int, list[bytes]]()
        cached = dict[str, int]()
        for place, route in ways:
            config = self._instances[place].state.config
            size = config.page_size
            if config.prefix_cache:
                if size not in hashes:
                    hashes[size] = page_hashes(tokens, size, salt)[: (len(tokens) - 1) // size]
                cached[route.id] = size * self._pages.leading(route.home, self._lineage(route), hashes[size])
        return RouteView(len(tokens), total - len(tokens), self._paces, cached)

    def note(self, place: int, route: Route, submission: Submission) -> None:
        """Note the pages of a request that is sent to an instance, if other models may serve its chain's requests."""
        instance = self._instances[place]
        config = instance.state.config
        if route.application in self._varied and config.prefix_cache:
            hashes = submission.page_hashes[: (len(submission.tokens) - 1) // config.page_size]
            self._pages.note(route.home, self._lineage(route), hashes, instance.total_blocks)

    def _lineage(self, route: Route) -> bytes:
        return self._pages.lineage(self._chains[route.application])

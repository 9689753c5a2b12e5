"""Route shapes: routes that memory cannot tell apart, since a page of each takes the same slots.

Many models of one base have one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..model.runs import LocalRoute, Span


@dataclass(frozen=True, slots=True)
class RouteShape:
    """A shape.

    spans: of one of the routes. layers: slots of one page, by arena. homes: names of applications whose route begins here.
    """

    spans: tuple[Span, ...]
    layers: Mapping[str, int]
    homes: tuple[str, ...]


def route_shapes(routes: Iterable[LocalRoute]) -> list[RouteShape]:
    """Return the shapes of the routes with KV on this worker."""
    found: dict[tuple[tuple[str, int], ...], tuple[tuple[Span, ...], set[str]]] = {}
    for local in routes:
        if local.spans:
            key = tuple((span.arena, span.layers) for span in local.kv)
            _, homes = found.setdefault(key, (local.kv, set()))
            if not local.hop:
                homes.add(local.route.application)
    return [RouteShape(spans, _layers(spans), tuple(sorted(homes))) for spans, homes in found.values()]


def _layers(spans: Iterable[Span]) -> dict[str, int]:
    layers: dict[str, int] = {}
    for span in spans:
        layers[span.arena] = layers.get(span.arena, 0) + span.layers
    return layers

"""Runs and spans: the units that a worker executes and caches, derived from the routes through it (``local_paths``).

A *run* is the longest range of local components that no route enters or leaves in the middle; a *span* is the same for KV
layers. Both are found on the graph whose nodes are (depth, shared component) and (layer, lineage). Chains that share
parameters at the same depth share runs, even above a part in which they differ, whatever their deltas; KV is shared only
where everything below is equal.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from .chain import HIDDEN, Component, Kind, Route
from .tier_work import FamilyTier


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive components executed by one native call.

    A head is always a run of its own, since few rows pass it; a stitch too, since a run has one width.
    """

    depth: int  # of the first component
    components: tuple[bytes, ...]  # ids of executed components: for an adapted one, its base
    kv_layer: int  # KV layer of the first attention in the run
    head: bool
    nbytes: int = 0  # bytes of parameters a token is multiplied with, without an embedding's
    kv_bytes: int = 0  # bytes of a position, in all layers of the run


Border = tuple[int, bytes]  # (a KV layer that begins a span, its lineage)


@dataclass(frozen=True, slots=True)
class Span:
    """KV layers ``layer`` to ``layer + layers - 1``; ``lineage`` is the last layer's."""

    layer: int
    layers: int
    lineage: bytes
    arena: str  # key of the layout
    components: tuple[tuple[bytes, ...], ...]  # for each layer: what must be resident to make its KV, with its delta
    lineages: tuple[bytes, ...]  # of each layer

    @classmethod
    def of(cls, layer: int, arena: str, components: Sequence[tuple[bytes, ...]], lineages: Sequence[bytes]) -> Span:
        """Return a span from the facts of each layer."""
        return cls(layer, len(lineages), lineages[-1], arena, tuple(components), tuple(lineages))

    def cut(self, borders: Container[Border]) -> tuple[Span, ...]:
        """Return the spans that these borders cut it into; itself if none lies inside."""
        inside = [i for i in range(1, self.layers) if (self.layer + i, self.lineages[i]) in borders]
        if not inside:
            return (self,)
        pairs = zip([0, *inside], [*inside, self.layers], strict=True)
        return tuple(Span.of(self.layer + a, self.arena, self.components[a:b], self.lineages[a:b]) for a, b in pairs)

    @property
    def void(self) -> Span:
        """The span without layers that stands for a page which is not needed. Its pages have no memory."""
        return Span(self.layer, 0, b"", self.arena, (), ())

    @property
    def hidden(self) -> bool:
        """True if its pages hold hidden states. They save time and are never needed."""
        return self.arena.startswith(HIDDEN)

    @property
    def kv_layer(self) -> int:
        """The KV layer with which it moves between workers: its first; for hidden states the last one below the exit."""
        return self.layer - 1 if self.hidden else self.layer


@dataclass(frozen=True, slots=True)
class Exit:
    """A place between two components whose hidden states are kept as pages of ``span``.

    The span's one layer is numbered as the KV layer behind the exit; the KV layers before it have lower numbers.
    """

    depth: int  # of the component behind it
    span: Span


@dataclass(frozen=True, slots=True)
class GuessPath:
    """The surrogate of the block with which a route ends on this worker, beside that block.

    Its KV has layers behind all of the chain's, in spans that are the last of the route's.
    """

    depth: int  # of the block's first component
    runs: tuple[Run, ...]
    head: Run  # by which the states behind both are compared
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """A route as one of its workers sees it."""

    route: Route
    hop: int
    runs: tuple[Run, ...]  # in order of depth; the head's, if it is here, last
    spans: tuple[Span, ...]
    next_worker: str | None  # where rows go from here; None at the chain's end
    width: int  # of the hidden states that leave here
    cost_compute: int  # bytes of parameters that a token passes here
    cost_memory: int  # bytes of KV of a page here, without padding
    max_length: int  # tokens of a sequence, prompt and answer together
    deltas: tuple[tuple[int, bytes], ...] = ()  # (depth, delta id) of the adapted ones among the components here
    touched: tuple[bool, ...] = ()  # for each run: whether it contains a delta
    delta: int = 0  # number of ``deltas`` on this worker (``LocalRoutes``); 0: there are none
    exit: Exit | None = None  # where the route leaves, if hidden states are kept there for others; its span is the last
    entries: tuple[Exit, ...] = ()  # exits of other routes that it passes, the deepest first
    tier: FamilyTier | None = None  # in the accounts of the worker; None: the model has no tiers
    guess: GuessPath | None = None  # None: its hidden states leave as they are

    @property
    def kv_spans(self) -> int:
        """The number of spans that hold KV: all, or all but the last."""
        return len(self.spans) - 1 if self.exit is not None else len(self.spans)

    @property
    def kv(self) -> tuple[Span, ...]:
        """The spans that hold KV."""
        return self.spans if self.exit is None else self.spans[:-1]

    @property
    def every_run(self) -> tuple[Run, ...]:
        """The runs that rows pass, with the ones of a surrogate."""
        return self.runs if self.guess is None else (*self.runs, *self.guess.runs, self.guess.head)

    @property
    def column(self) -> int:
        """The layer, in the page tables, of hidden states that its rows read."""
        last = self.spans[-1]
        return last.layer + last.layers

    def cut(self, borders: Container[Border]) -> LocalRoute:
        """Return the same route with these borders between its spans."""
        spans = tuple(piece for span in self.spans for piece in span.cut(borders))
        return self if spans == self.spans else replace(self, spans=spans)

    def is_like(self, other: LocalRoute) -> bool:
        """Return whether sequences of the other route may continue here: same components at same depths, same spans."""
        return self._identity() == other._identity()

    def _identity(self) -> tuple[object, ...]:
        return self.route.hops, self.spans, self.deltas, [component for run in self.runs for component in run.components]


def run_of(depth: int, inside: Sequence[Component], kv_layer: int) -> Run:
    """Return the run of these components, whose first attention has this KV layer."""
    nbytes = sum(c.nbytes for c in inside if c.kind is not Kind.EMBEDDING)
    kv_bytes = sum(c.kv.raw_bytes // c.kv.page_size for c in inside if c.kv is not None)
    return Run(depth, tuple(c.shared for c in inside), kv_layer, inside[0].kind is Kind.HEAD, nbytes, kv_bytes)

"""Microbatches: the choice of rows that cross workers and leave together with a plan of their home.

A pipeline of s stages is busy, without bubbles, when s microbatches of equal duration are in flight. So at most s are away
on a path, and each gets its share, an s-th, of the decoding rows. Rows that left together come home together and leave
together again. No other microbatch leaves with them; prompts do. A microbatch of which some rows are still away waits for
them, unless nothing else keeps the pipeline busy. If shares are unequal, because a sequence came or ended, rows beyond a
share stay for the next microbatch that leaves: so rows pass from the larger to the smaller.

Prompts are cut so that the microbatches of the next rounds take equally long (``plan/lookahead.py``), by the cost model if
this worker has one. Chunks of a prompt follow one another at once: no stage sees a chunk before it has written the last
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.coefficients import Coefficients
from ..plan.lookahead import ChunkCost, Lookahead, PromptChunk
from .columns import Place
from .config import SweepConfig
from .parts import Parts

NEVER = 0
NOW = 1
LATER = 2


class MicrobatchScheduler:
    """The schedule of microbatches for one plan: how many rows may leave on each path, and which first.

    A path is the hosts of a route.
    """

    def __init__(self, parts: Parts) -> None:
        self._rows = parts.rows
        self._leases = parts.leases
        self._config = parts.config
        self._stages: dict[str, int] = {}
        self._sequences: dict[str, int] = {}  # path -> running sequences at home
        self._room: dict[str, int] = {}  # path -> decoding rows that may still leave; only paths on which any may
        self._first: dict[str, int] = {}  # path -> last plan number with a turn: microbatches up to it may leave
        self._away: dict[str, list[int]] = {}  # path -> microbatches that wait for rows of theirs
        if len(parts.leases):
            self._deal(parts.queue.running)

    def _deal(self, running: Sequence[int]) -> None:
        rows, leases = self._rows, self._leases
        decoding: dict[str, int] = {}
        home: dict[str, list[int]] = {}  # path -> for each decoding row here, the plan with which it last left
        for s in running:
            if rows.place[s] == Place.FORWARD:
                path = leases.path(s)
                self._stages[path] = len(rows.route[s].route.hops)
                self._sequences[path] = self._sequences.get(path, 0) + 1
                if rows.known[s] - rows.planned[s] <= 1:
                    decoding[path] = decoding.get(path, 0) + 1
                    if not leases.is_away(s):
                        home.setdefault(path, []).append(leases.left(s))
        for path, stages in self._stages.items():
            away = leases.microbatches(path)
            if len(away) < stages:
                share = self._room[path] = -(-decoding.get(path, 0) // stages)
                here = home.get(path, [])
                whole = [left for left in here if left not in away]
                self._away[path] = away if whole else []
                order = sorted(whole or here)
                self._first[path] = order[min(share, len(order)) - 1] if order else 0

    def of(self, s: int) -> int:
        """Return when the decoding row of ``s``, which is here, may leave: NOW, LATER (if others leave room), or NEVER."""
        path, left = self._leases.path(s), self._leases.left(s)
        if path not in self._room or left in self._away[path]:
            return NEVER
        return NOW if left <= self._first[path] else LATER

    def room(self, s: int) -> bool:
        """Return whether one more decoding row may leave on the path of ``s``."""
        return self._room[self._leases.path(s)] > 0

    def take(self, s: int) -> None:
        """Count a row that leaves."""
        self._room[self._leases.path(s)] -= 1

    def chunks(self, prompts: Sequence[int]) -> dict[int, int]:
        """Return how many tokens of each prompt that crosses workers leave with this plan.

        The order of ``prompts`` counts.
        """
        paths: dict[str, list[int]] = {}
        for s in prompts:
            if self._rows.place[s] == Place.FORWARD and (path := self._leases.path(s)) in self._room:
                paths.setdefault(path, []).append(s)
        found: dict[int, int] = {}
        for path, some in paths.items():
            found.update(self._cut(some, self._stages[path], alone=self._sequences[path] == 1))
        return found

    def _cut(self, prompts: Sequence[int], stages: int, *, alone: bool) -> dict[int, int]:
        rows, config = self._rows, self._config
        left = [(s, rows.planned[s], rows.known[s] - rows.planned[s]) for s in prompts]
        if alone or not config.lookahead:  # no other sequence waits for it
            return {s: count for s, _, count in left}
        rounds, tokens = config.lookahead * stages, 0
        pieces: list[tuple[int, PromptChunk]] = []  # round robin over the prompts; no piece is longer than a chunk
        while left and tokens < rounds * config.sweep_tokens:
            for s, start, count in left:
                pieces.append((s, PromptChunk("", start, min(count, config.chunk_size))))
                tokens += pieces[-1][1].count
            left = [(s, start + config.chunk_size, n - config.chunk_size) for s, start, n in left if n > config.chunk_size]
        price, least = _price(config, stages)
        made = Lookahead(price, max(least, tokens // rounds), stages).form([piece for _, piece in pieces], waiting=True)
        found: dict[int, int] = {}
        for (s, _), chunk in zip(pieces, made[0].chunks, strict=False):
            found[s] = found.get(s, 0) + chunk.count
        return found


def _price(config: SweepConfig, stages: int) -> tuple[ChunkCost, int]:
    """Return the cost of chunks, and the least tokens of a sweep: as many as take as long as its fixed cost.

    Without a cost model each token costs the same, and a chunk is enough.
    """
    costs: Coefficients | None = config.costs
    price = ChunkCost(attention=0.0, token=1.0) if costs is None else ChunkCost.of(costs, stages)
    if costs is None or price.token <= 0:
        return price, config.chunk_size
    return price, max(1, min(round(price.sweep / price.token), config.chunk_size))

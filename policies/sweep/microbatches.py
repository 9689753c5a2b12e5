"""Microbatches: which rows of sequences that cross workers leave together with a plan of their home.

A pipeline of s stages is busy, without bubbles, when s microbatches are under way that take equally long. So at most s are
away on a path, and each has its share of the decoding rows, an s-th. Rows that left together come home together and leave
together again; no other microbatch leaves beside these, and prompts go with them. One of which a part is still away waits
for it, unless nothing else keeps the pipeline busy. Where shares are unequal, because a sequence came or ended, what is
beyond a share stays for the next one that leaves: so rows pass from the larger to the smaller.

Prompts are cut so that the microbatches of the next rounds take equally long (``plan/lookahead.py``), by the cost model
where this worker has one. Chunks of a prompt follow one another at once: no stage sees one before it has written the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.coefficients import Coefficients
from ..plan.lookahead import ChunkCost, Lookahead, PromptChunk
from .columns import Place
from .config import SweepConfig
from .parts import Parts

NEVER, NOW, LATER = 0, 1, 2


class Turns:
    """Of one plan, for each path (the hosts of a route): how many rows may leave, and which go first."""

    def __init__(self, parts: Parts) -> None:
        self._rows, self._leases, self._config = parts.rows, parts.leases, parts.config
        self._stages: dict[str, int] = {}
        self._sequences: dict[str, int] = {}  # at home that run
        self._room: dict[str, int] = {}  # decoding rows that may still leave, of paths on which anything may
        self._first: dict[str, int] = {}  # the microbatches that left with this plan or an earlier one have their turn
        self._away: dict[str, list[int]] = {}  # those that wait for rows of theirs
        if len(parts.leases):
            self._deal(parts.queue.running)

    def _deal(self, running: Sequence[int]) -> None:
        rows, leases = self._rows, self._leases
        decoding: dict[str, int] = {}
        home: dict[str, list[int]] = {}  # of each decoding row that is here the plan with which it left last
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
        """When the decoding row of ``s``, which is at home, may leave: with this plan, if others leave it room, or not."""
        path, left = self._leases.path(s), self._leases.left(s)
        if path not in self._room or left in self._away[path]:
            return NEVER
        return NOW if left <= self._first[path] else LATER

    def room(self, s: int) -> bool:
        """Whether one more decoding row may leave on the path of ``s``."""
        return self._room[self._leases.path(s)] > 0

    def take(self, s: int) -> None:
        """It leaves."""
        self._room[self._leases.path(s)] -= 1

    def chunks(self, prompts: Sequence[int]) -> dict[int, int]:
        """How many tokens of these prompts, which run in this order, leave with this plan; of those that cross workers."""
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
        if alone or not config.lookahead:  # nobody waits for it
            return {s: count for s, _, count in left}
        rounds, tokens = config.lookahead * stages, 0
        pieces: list[tuple[int, PromptChunk]] = []  # of each prompt one after the other, no longer than a sweep takes
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
    """What chunks cost, and the tokens that a sweep should have at least: as many as take as long as it does by itself.
    Without a cost model each token costs the same, and a chunk is enough."""
    costs: Coefficients | None = config.costs
    price = ChunkCost(attention=0.0, token=1.0) if costs is None else ChunkCost.of(costs, stages)
    if costs is None or price.token <= 0:
        return price, config.chunk_size
    return price, max(1, min(round(price.sweep / price.token), config.chunk_size))

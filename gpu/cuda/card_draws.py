"""Draws on the card: which rows it draws, by which operations, and how the host reads what was drawn.

A row is drawn on the card, unless its law needs the tokens before it (grammars, phrases and repeats, the rule of rejection)
or a longer list than the card takes. Legend: N batch rows, T drawn positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...policies.plan.sampling import SamplingParams
from ...policies.plan.sweep_plan import FAILED, TokenLogprob
from ..sampling import rejection
from ..sampling.noise import noise_key
from ..sampling.sampler import penalised, raw_logprobs
from ..sweep_columns import Ints
from ..sweep_draws import SweepOutcome
from ..tables import Tables
from .backend import COUNTS, SCORES, CudaBackend
from .footprint import CHOSEN_TOGETHER
from .forward import LOGITS
from .ops import BEST, Choices, Logprobs
from .plan_columns import PlanColumns
from .results import PlanResults

DrawnToken = tuple[int, int, SamplingParams]  # table row, position, options
LISTED = 4096  # most tokens of a row's list


def is_of_host(tables: Tables, row: int, position: int, vocabulary: int, drafted: bool) -> bool:
    """Return whether the host draws a row's token at ``position``: for a grammar, phrases, a vector, or a list too long.

    ``drafted``: it is a draft, or judges one, which the host does where the rule of rejection applies.
    """
    params, rules = tables.sampling[row], tables.rules[row]
    if tables.grammars[row] is not None or params.pooling is not None or (drafted and rejection.applies(params)):
        return True
    if rules is None:
        return False
    listed = rules.listed(position - int(tables.prompt_length[row]), vocabulary)
    return listed is None or listed.id_L.size > LISTED


def plain(params: SamplingParams) -> bool:
    """Return whether only the temperature counts."""
    if params.rules is not None or penalised(params):
        return False
    return params.temperature == 0.0 or (params.top_k == 0 and params.top_p >= 1.0 and params.min_p == 0.0)


def simple_columns(params: Sequence[SamplingParams], positions: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the keys of the noise, int64 [T], and the temperatures, float64 [T]."""
    keys = [noise_key(p.seed, p.choice, at) if p.temperature else 0 for p, at in zip(params, positions, strict=True)]
    return np.asarray(keys, dtype=np.uint64).view(np.int64), np.asarray([p.temperature for p in params], dtype=np.float64)


@dataclass(slots=True)
class _Chosen:
    """Rows that are drawn by all parameters, with their columns at offsets."""

    rows: int
    ints: int
    floats: int
    key: int
    ids: int
    values: int
    listed: int
    penalised: bool


@dataclass(slots=True)
class _Wanted:
    """Rows whose log-probabilities are made on the card: offsets of their index and results."""

    places: list[int]  # within the group
    index: int
    numbers: int
    ranks: int
    best: int


@dataclass(slots=True)
class DrawnGroup:
    """Positions whose logits are in scratch together, from ``first`` of the call on.

    ``copied``: place in the group, and offset in the results, of logits that leave as a whole.
    """

    first: int
    count: int
    simple: tuple[int, int] | None  # offsets of keys and temperatures; None: all are chosen
    chosen: list[_Chosen] = field(default_factory=list)
    wanted: _Wanted | None = None
    copied: list[tuple[int, int]] = field(default_factory=list)


class CardDraws:
    """The draws of one plan on the card. Columns go to ``columns``, what is drawn comes back in ``results``."""

    def __init__(self, backend: CudaBackend, tables: Tables, columns: PlanColumns, results: PlanResults) -> None:
        self._backend, self._tables = backend, tables
        self._columns, self._results = columns, results

    def group(self, first: int, drawn: Sequence[DrawnToken], vocabulary: int, wanted: bool = True) -> DrawnGroup:
        """Add the columns of positions that are drawn together; the call's position ``first`` is their first.

        With ``wanted`` log-probabilities are wanted where options ask for them.
        """
        chosen = [place for place, (_, _, p) in enumerate(drawn) if not plain(p)]
        group = DrawnGroup(first, len(drawn), None)
        if len(chosen) < len(drawn):
            key_T, temperature_T = simple_columns([p for _, _, p in drawn], [position for _, position, _ in drawn])
            group.simple = self._columns.add(key_T), self._columns.add(temperature_T)
        for begin in range(0, len(chosen), CHOSEN_TOGETHER):
            places = chosen[begin : begin + CHOSEN_TOGETHER]
            group.chosen.append(self._choices(places, [drawn[place] for place in places], vocabulary))
        if wanted:
            self._want([p.logprobs for _, _, p in drawn], group, vocabulary)
        return group

    def _choices(self, places: list[int], drawn: list[DrawnToken], vocabulary: int) -> _Chosen:
        ints, floats = list[Any](), list[Any]()
        keys = list[int]()
        ids, values = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        entries, most = 0, 0
        for place, (row, position, p) in zip(places, drawn, strict=True):
            prompt, rules = int(self._tables.prompt_length[row]), self._tables.rules[row]
            listed = rules.listed(position - prompt, vocabulary) if rules is not None else None
            size = listed.id_L.size if listed is not None else 0
            if listed is not None:
                ids.append(listed.id_L)
                values.append(listed.value_L)
            only = listed is not None and listed.only
            ints.append((place, row, position, prompt, p.top_k, entries, size, only))
            least = math.log(p.min_p) if p.min_p > 0.0 else -math.inf
            penalties = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
            floats.append((p.temperature, least, p.top_p, *penalties))
            keys.append(noise_key(p.seed, p.choice, position))
            entries, most = entries + size, max(most, size)
        add = self._columns.add
        return _Chosen(
            len(places),
            add(np.asarray(ints, dtype=np.int32)),
            add(np.asarray(floats, dtype=np.float64)),
            add(np.asarray(keys, dtype=np.uint64).view(np.int64)),
            add(np.concatenate(ids).astype(np.int32)),
            add(np.concatenate(values)),
            most,
            any(penalised(p) for _, _, p in drawn),
        )

    def _want(self, counts: Sequence[int], group: DrawnGroup, vocabulary: int) -> None:
        """Add room for log-probabilities: of each place the best ones wanted, -1 for none."""
        wanted = [place for place, best in enumerate(counts) if 0 <= best <= BEST]
        if wanted:
            index = self._columns.add(np.asarray(wanted, dtype=np.int32))
            numbers = self._results.room(8 * len(wanted) * (2 + BEST))
            ranks = self._results.room(4 * len(wanted) * (1 + BEST))
            best = min(max(counts[place] for place in wanted), vocabulary)
            group.wanted = _Wanted(wanted, index, numbers, ranks, best)
        group.copied = [(place, self._results.room(4 * vocabulary)) for place, best in enumerate(counts) if best > BEST]

    def scored_group(self, first: int, counts: Sequence[int], vocabulary: int) -> DrawnGroup:
        """Return a group of positions that are scored, not drawn; the call's position ``first`` is their first."""
        group = DrawnGroup(first, len(counts), None)
        self._want(counts, group, vocabulary)
        return group

    def queue(self, group: DrawnGroup, logits: int, vocabulary: int, token: int) -> None:
        """Queue the draws of a group, whose tokens go to ``token``, int32 [count], and its log-probabilities."""
        ops, at = self._backend.ops, self._columns.at
        scratch, tables = self._backend.scratch, self._backend.tables
        if group.simple is not None:
            ops.draw(logits, group.count, vocabulary, at(group.simple[0]), at(group.simple[1]), token)
        for c in group.chosen:
            choices = Choices(
                c.rows, at(c.ints), at(c.floats), at(c.key), at(c.ids), at(c.values), c.listed, c.penalised, tables.tokens,
                tables.token_stride, scratch[SCORES], scratch[COUNTS],
            )  # fmt: skip
            ops.choose(logits, vocabulary, choices, token)
        self.queue_logprobs(group, logits, vocabulary, token)

    def queue_logprobs(self, group: DrawnGroup, logits: int, vocabulary: int, token: int) -> None:
        """Queue a group's log-probabilities."""
        at = self._results.at
        if (wanted := group.wanted) is not None:
            out = Logprobs(at(wanted.numbers), at(wanted.ranks))
            self._backend.ops.logprobs(
                logits, vocabulary, len(wanted.places), self._columns.at(wanted.index), wanted.best, token, out
            )
        for place, offset in group.copied:
            source = self._backend.scratch.tensor(LOGITS, 4 * vocabulary, 4 * place * vocabulary)
            self._backend.compute.launch(partial(self._results.tensor(offset, 4 * vocabulary).copy_, source))


def read_logprobs(
    groups: Sequence[DrawnGroup], token_T: Sequence[int], counts: Sequence[int], vocabulary: int, region_B: Ints
) -> list[TokenLogprob | None]:
    """Return the log-probabilities of a call's positions; ``counts`` are the best ones wanted of each, -1 for none."""
    found: list[TokenLogprob | None] = [None] * len(token_T)
    for group in groups:
        if (wanted := group.wanted) is not None:
            numbers = _array(region_B, wanted.numbers, np.float64, len(wanted.places), 2 + BEST)
            ranks = _array(region_B, wanted.ranks, np.int32, len(wanted.places), 1 + BEST)
            for i, place in enumerate(wanted.places):
                t = group.first + place
                if token_T[t] in FAILED:
                    continue
                norm, best = float(numbers[i, 0]), min(counts[t], vocabulary)
                ids, values = ranks[i, 1 : 1 + best].tolist(), (numbers[i, 2 : 2 + best] - norm).tolist()
                top = list(zip(ids, values, strict=True))
                found[t] = TokenLogprob(float(numbers[i, 1]) - norm, top, int(ranks[i, 0]))
        for place, offset in group.copied:
            t = group.first + place
            if token_T[t] not in FAILED:
                logits_V = _array(region_B, offset, np.float32, vocabulary)
                found[t] = raw_logprobs(logits_V, token_T[t], counts[t])
    return found


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call of ``Device.sample`` whose tokens the card draws: what the ticket's owner reads afterwards.

    ``spans``: batch row, its first drawn token, and how many were drawn.
    """

    spans: list[tuple[int, int, int]]
    groups: list[DrawnGroup]
    counts: list[int]
    vocabulary: int
    token: int  # offset, int32 [T]
    standing: int = -1  # offset, int32 [N]; -1: one token of each row was drawn, and stands

    def read(self, region_B: Ints, outcome: SweepOutcome) -> None:
        """Take the tokens that count into the outcome."""
        token_T = _array(region_B, self.token, np.int32, len(self.counts)).tolist()
        standing_N = [1] * len(self.spans)
        if self.standing >= 0:
            standing_N = _array(region_B, self.standing, np.int32, len(self.spans)).tolist()
        logprobs = read_logprobs(self.groups, token_T, self.counts, self.vocabulary, region_B)
        for entry in logprobs:
            if entry is not None:
                entry.rank = 0  # counted for prompt tokens only
        for (n, first, _), standing in zip(self.spans, standing_N, strict=True):
            outcome.set(n, token_T[first : first + standing], logprobs[first : first + standing])


def _array(region_B: Ints, offset: int, dtype: type, *shape: int) -> Ints:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return region_B[offset : offset + size].view(dtype).reshape(shape)

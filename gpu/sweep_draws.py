"""Draws of one sweep on the host: tokens, drafts, verdicts on drafts and scores of prompts, from a back end's logits.

The truth for every device, whose own draws give the same tokens. Rows are drawn by ``gpu/sampling/sampler.py``; this module
knows which positions of a batch row are drawn, and writes what was drawn to the tables, where the next plan reads it.
A row that gives a vector in place of tokens is pooled here, too. Legend: N rows, T positions, V vocabulary, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..policies.plan.sweep_plan import FAILED, NOT_FINITE, SweepPlan, SweepResult, TokenLogprob
from .sampling import rejection
from .sampling.masks import TokenMasks
from .sampling.pooling import picked
from .sampling.sampler import choose, law, raw_logprobs, sample, score_prompt
from .sampling.verification import DrawnPositions, standing
from .sweep_columns import Ints, Rows, SweepColumns
from .tables import Tables

SCORED_TOGETHER = 32  # prompt positions with logits in memory at a time


class Heads(Protocol):
    """The part of a back end that draws need (``HostBackend``)."""

    def logits(self, run: Any, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor: ...

    def states(self, run: Any, hidden_ND: torch.Tensor) -> np.ndarray: ...

    def argmax(self, logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray: ...

    def allowed(self, logits_V: np.ndarray, mask_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


class SweepOutcome:
    """The outcome of a sweep's draws so far, by batch row."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self.tokens: dict[int, int] = {}
        self.logprobs: dict[int, TokenLogprob | None] = {}
        self.verified: dict[int, tuple[list[int], list[TokenLogprob]]] = {}  # further ones of verified rows
        self.scores: dict[int, list[TokenLogprob]] = {}
        self.vectors: dict[int, bytes] = {}
        self.forced: dict[int, list[int]] = {}  # tokens that must follow
        self.on_host = 0  # rows that a card left to the host

    def set(self, n: int, tokens: list[int], logprobs: list[TokenLogprob | None]) -> None:
        """Set the tokens of a batch row that count: one, or several of a row that was verified."""
        self.tokens[n], self.logprobs[n] = tokens[0], logprobs[0]
        self.verified[n] = tokens[1:], [entry for entry in logprobs[1:] if entry is not None]

    def give(self, n: int, vector: bytes) -> int:
        """Set the vector of a batch row; return what stands in place of its token."""
        if not vector:
            return NOT_FINITE
        self.vectors[n] = vector
        return 0

    def result(self, seconds: float, kernel_seconds: float) -> SweepResult:
        """Return the result of the sweep, which took ``seconds``, and ``kernel_seconds`` of them in runs and heads."""
        plan = self._plan
        return SweepResult(
            number=plan.number,
            tokens=[self.tokens[n] for n in plan.sample],
            logprobs=[self.logprobs[n] for n in plan.sample],
            scores=[self.scores[n] for n in plan.score],
            seconds=seconds,
            kernel_seconds=kernel_seconds,
            verified=[self.verified[n][0] for n in plan.verify],
            verified_logprobs=[self.verified[n][1] for n in plan.verify],
            vectors=list(self.vectors.items()),
            forced=[(place, self.forced[n]) for place, n in enumerate(plan.sample) if n in self.forced],
            on_host=self.on_host,
        )


class SweepDraws:
    """The draws of a sweep so far (see the module).

    ``pick`` returns the hidden states [N, D] of single tokens, given a width and their places in the sweep.
    """

    def __init__(
        self,
        columns: SweepColumns,
        tables: Tables,
        backend: Heads,
        pick: Callable[[int, Ints], torch.Tensor],
    ) -> None:
        self._columns, self._plan = columns, columns.plan
        self._tables = tables
        self._backend, self._pick = backend, pick
        self.outcome = SweepOutcome(columns.plan)
        self._laws: dict[int, dict[int, np.ndarray]] = {}  # by batch row and place: a draft's, if it counts
        self.seconds = 0.0  # inside heads and sampling

    def result(self, seconds: float, kernel_seconds: float) -> SweepResult:
        """Return the result of the sweep, which took ``seconds``, and ``kernel_seconds`` of them in runs."""
        return self.outcome.result(seconds, kernel_seconds + self.seconds)

    def sample(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Draw the next token of these batch rows and write it behind their last position."""
        if self._plan.verify:
            self._sample_positions(run, width, at, delta)
            return
        position_N = at.start_N + at.count_N
        hidden_ND = self._pick(width, at.offset_N + at.count_N - 1)
        began = time.perf_counter()
        logits_NV = self._backend.logits(run, hidden_ND, numbers(delta))
        tokens, logprobs = self._drawn(logits_NV, at.row_N, position_N)
        self._give_logits(zip(at.batch, at.row_N.tolist(), range(len(tokens)), strict=True), logits_NV, tokens)
        self.seconds += time.perf_counter() - began
        self.outcome.tokens.update(zip(at.batch, tokens, strict=True))
        self.outcome.logprobs.update(zip(at.batch, logprobs, strict=True))
        self._append(at.row_N, position_N, tokens)
        self._force(at.batch, at.row_N, position_N, tokens)

    def _drawn(self, logits_NV: torch.Tensor, row_N: Ints, position_N: Ints) -> tuple[list[int], list[TokenLogprob | None]]:
        backend = self._backend
        return sample(logits_NV, row_N.tolist(), position_N.tolist(), self._tables, backend.argmax, backend.allowed)

    def _give_logits(self, rows: Iterable[tuple[int, int, int]], logits_TV: torch.Tensor, tokens: list[int]) -> None:
        """Give the vectors of rows that want logits: of each the batch row, the table row and the place of its logits."""
        if not self._tables.pooled:
            return
        for n, row, place in rows:
            if (pooling := self._tables.sampling[row].pooling) is not None:
                tokens[place] = self.outcome.give(n, picked(logits_TV[place].numpy(), pooling))

    def pool(self, run: Any, width: int, at: Rows) -> None:
        """Pool the states of these batch rows, and give the vectors of the ones that end with their last position."""
        ending, scored = set(self._plan.sample), set(self._plan.score)
        outcome = self.outcome
        began = time.perf_counter()
        columns = zip(
            at.batch, at.row_N.tolist(), at.start_N.tolist(), at.count_N.tolist(), at.offset_N.tolist(), strict=True
        )
        for n, row, start, count, offset in columns:
            pool = self._tables.pools[row]
            if pool is None:  # it wants tokens, and its model has been replaced by an embedder
                outcome.tokens[n], outcome.logprobs[n] = NOT_FINITE, None
                outcome.scores[n] = []
                continue
            skipped = 0 if pool.whole else count - 1
            for place in range(skipped, count, SCORED_TOGETHER):
                some = min(SCORED_TOGETHER, count - place)
                hidden_TD = self._pick(width, np.arange(offset + place, offset + place + some))
                pool.add(self._backend.states(run, hidden_TD), start + place)
            if n in ending:
                outcome.tokens[n], outcome.logprobs[n] = outcome.give(n, pool.vector()), None
            if n in scored:
                outcome.scores[n] = []
        self.seconds += time.perf_counter() - began

    def _sample_positions(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Draw as ``sample`` does, but after each position of rows with drafts, up to the first draft that differs."""
        columns, verify = self._columns, set(self._plan.verify)
        drawn = DrawnPositions(self._plan, at.batch, verify)
        row_T = columns.row_N[drawn.batch_T]
        position_T = columns.start_N[drawn.batch_T] + drawn.place_T + 1
        hidden_TD = self._pick(width, columns.offset_N[drawn.batch_T] + drawn.place_T)
        began = time.perf_counter()
        delta_T = np.repeat(delta, drawn.count_N).tolist() if delta else []
        logits_TV = self._backend.logits(run, hidden_TD, numbers(delta_T))
        tokens, logprobs = self._drawn(logits_TV, row_T, position_T)
        spans = list(zip(at.batch, drawn.first_N.tolist(), drawn.count_N.tolist(), strict=True))
        rows = columns.row_N[np.asarray(at.batch)].tolist()
        self._give_logits(zip(at.batch, rows, drawn.first_N.tolist(), strict=True), logits_TV, tokens)
        for n, first, count in spans:
            if n in verify and rejection.applies(self._tables.sampling[int(columns.row_N[n])]):
                self._judge(n, logits_TV[first : first + count], tokens, logprobs, first)
        self.seconds += time.perf_counter() - began
        last_N = drawn.first_N.copy()  # index of the last token of each row that counts
        for i, (n, first, count) in enumerate(spans):
            counting = 1
            if n in verify:
                begin, end = int(columns.start_N[n]) + 1, int(columns.start_N[n]) + count
                drafts_T = self._tables.tokens[int(columns.row_N[n]), begin:end]
                counting = standing(tokens[first : first + count], drafts_T)
                last_N[i] += counting - 1
            self.outcome.set(n, tokens[first : first + counting], logprobs[first : first + counting])
        last = [tokens[i] for i in last_N.tolist()]
        self._append(row_T[last_N], position_T[last_N], last)
        self._force(at.batch, row_T[last_N], position_T[last_N], last)

    def _judge(
        self, n: int, logits_TV: torch.Tensor, tokens: list[int], logprobs: list[TokenLogprob | None], first: int
    ) -> None:
        """Put the tokens of the rejection rule in the place of the drawn ones of a batch row, which begin at ``first``."""
        row = int(self._columns.row_N[n])
        position = int(self._columns.start_N[n]) + 1
        tables = self._tables
        count = len(logits_TV) - 1
        params = tables.sampling[row]
        own = tokens[first : first + len(logits_TV)]
        # the positions behind one that failed have no law
        count = next((i for i, token in enumerate(own) if token in FAILED), count)
        all_TV = logits_TV.numpy()
        target = [law(all_TV[i], row, position + i, tables) for i in range(count)]
        drafts = tables.tokens[row, position : position + count].tolist()
        for i, token in enumerate(rejection.judge(target, drafts, self._laws.get(n, {}), params, position)):
            tokens[first + i] = token
            if params.logprobs >= 0:
                logprobs[first + i] = raw_logprobs(all_TV[i], token, params.logprobs)

    def draft(self, run: Any, width: int, at: Rows, delta: Sequence[int], place: int) -> None:
        """Draw a draft of each row as a token is drawn at its position, and write it to the table.

        The draft of a draft row is written to its target's row, too.
        """
        position_N = at.start_N + at.count_N
        targets = {row.batch: row.target for row in self._plan.draft_rows}
        began = time.perf_counter()
        hidden_ND = self._pick(width, at.offset_N + at.count_N - 1)
        logits_NV = self._backend.logits(run, hidden_ND, numbers(delta))
        backend, rows = self._backend, at.row_N.tolist()
        tokens = choose(logits_NV, rows, position_N.tolist(), self._tables, backend.argmax, backend.allowed)
        for i, (n, row, position) in enumerate(zip(at.batch, at.row_N.tolist(), position_N.tolist(), strict=True)):
            if rejection.applies(params := self._tables.sampling[row]):
                drawn_V = law(logits_NV[i].numpy(), row, position, self._tables)
                tokens[i] = rejection.draw_draft(drawn_V, params, position)
                self._laws.setdefault(targets.get(n, n), {})[place] = drawn_V
        self.seconds += time.perf_counter() - began
        self._append(at.row_N, position_N, tokens)
        if targets:
            target_N = np.asarray([self._columns.row_N[targets.get(n, n)] for n in at.batch])
            self._append(target_N, position_N, tokens)

    def _force(self, batch: Sequence[int], row_N: Ints, position_N: Ints, tokens: list[int]) -> None:
        """Look for tokens that must follow the ones that were drawn at these positions."""
        tables = self._tables
        if not tables.constrained:
            return
        for n, row, position, token in zip(batch, row_N.tolist(), position_N.tolist(), tokens, strict=True):
            grammar = tables.grammars[row]
            if grammar is None or token in FAILED or position + 1 >= tables.max_length:
                continue
            if found := grammar.forced(tables.tokens[row, int(tables.prompt_length[row]) : position + 1]):
                self.outcome.forced[n] = found

    def _append(self, row_N: Ints, position_N: Ints, tokens: list[int]) -> None:
        """Write drawn tokens to the table, where the next plan reads them."""
        inside_N = position_N < self._tables.max_length  # the token that fills a sequence is reported, but never read
        # read by the next plan, which needs a valid id even if nothing was drawn
        read_N = np.maximum(np.asarray(tokens, dtype=np.int32), 0)
        self._tables.append(row_N[inside_N], position_N[inside_N], read_N[inside_N])

    def score(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        """Compute log-probabilities of the prompt tokens that follow the positions of these batch rows."""
        for i, n in enumerate(at.batch):
            self.outcome.scores[n] = self._score_row(run, width, at, i, delta[i] if delta else 0)

    def _score_row(self, run: Any, width: int, at: Rows, i: int, delta: int) -> list[TokenLogprob]:
        tables, row = self._tables, int(at.row_N[i])
        first, offset = int(at.start_N[i]), int(at.offset_N[i])
        count = min(int(at.count_N[i]), int(tables.prompt_length[row]) - 1 - first)
        tokens = tables.tokens[row, first + 1 : first + 1 + count].tolist()
        together = min(SCORED_TOGETHER, tables.rows)
        scored: list[TokenLogprob] = []
        began = time.perf_counter()
        for at_token in range(0, count, together):
            some = tokens[at_token : at_token + together]
            place_N = np.arange(offset + at_token, offset + at_token + len(some), dtype=np.int64)
            logits_NV = self._backend.logits(run, self._pick(width, place_N), numbers([delta] * len(some)))
            scored += score_prompt(logits_NV, some, tables.sampling[row].prompt_logprobs)
        self.seconds += time.perf_counter() - began
        return scored


def numbers(delta: Sequence[int]) -> Ints | None:
    """Return delta numbers as back ends take them; None if no row has deltas."""
    return np.asarray(delta, dtype=np.int32) if any(delta) else None

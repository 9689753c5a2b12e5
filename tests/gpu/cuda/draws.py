"""Draws of random rows by all parameters, on the card's way and by the host's sampler."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.gpu.cuda.backend import COUNTS, SCORES, CudaBackend
from blockwright.gpu.cuda.card_draws import CardDraws, SampledCall, is_of_host
from blockwright.gpu.cuda.forward import LOGITS
from blockwright.gpu.cuda.plan_columns import PlanColumns
from blockwright.gpu.cuda.results import PlanResults
from blockwright.gpu.sampling.sampler import sample
from blockwright.gpu.sweep_draws import SweepOutcome
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import SetSampling, SweepPlan, TokenLogprob, WriteTokens

LENGTH = 48
ROWS = 8


def random_params(draw: random.Random, vocabulary: int) -> SamplingParams:
    """Return options of which each is often off, often ordinary, and now and then extreme."""
    ids = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 12))]
    rules = TokenRules(
        allowed=draw.choice(([], [], ids, [*ids, *range(vocabulary // 2)])),
        banned=draw.choice(([], [[id] for id in ids[:3]])),
        bias=draw.choice(([], [(id, draw.uniform(-100, 100)) for id in set(ids)])),
        barred_first=draw.choice(([], ids[:1])),
        min_tokens=draw.choice((0, 40)),
        ends=ids[1:3],
    )
    return SamplingParams(
        temperature=draw.choice((0.0, 1e-6, 0.3, 0.7, 1.0, 1.7)),
        top_k=draw.choice((0, 0, 1, 5, 40, 2 * vocabulary)),
        top_p=draw.choice((1.0, 1.0, 0.95, 0.5, 0.01)),
        min_p=draw.choice((0.0, 0.0, 0.05, 0.5, 1.0)),
        repetition_penalty=draw.choice((1.0, 1.0, 1.3, 0.7)),
        presence_penalty=draw.choice((0.0, 0.0, 0.6, -1.0)),
        frequency_penalty=draw.choice((0.0, 0.0, 0.4, -2.0)),
        seed=draw.getrandbits(64),
        choice=draw.randrange(3),
        logprobs=draw.choice((-1, 0, 3, min(vocabulary, 70))),
        rules=draw.choice((None, rules)),
    )


def random_logits(draw: random.Random, vocabulary: int) -> torch.Tensor:
    """Return logits [ROWS, V], some rows with many equal ones, some with what is not finite."""
    spread = draw.choice((0.01, 1.0, 5.0))
    logits_NV = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(draw.getrandbits(40))) * spread
    logits_NV[2:4] = logits_NV[2:4].round()
    logits_NV[4] = 0.5
    if vocabulary > 3:
        logits_NV[5, draw.randrange(vocabulary)] = draw.choice((float("inf"), float("nan"), -float("inf")))
    return logits_NV


@dataclass(frozen=True, slots=True)
class Drawing:
    """Rows to draw from: tables with their tokens and options, and the position of each row's new token."""

    tables: Tables
    positions: list[int]
    logits_NV: torch.Tensor

    @classmethod
    def random(cls, draw: random.Random, vocabulary: int) -> Drawing:
        tables = Tables(ROWS, LENGTH, 1, 8)
        positions = [draw.randint(1, LENGTH - 1) for _ in range(ROWS)]
        for row, position in enumerate(positions):
            prompt = draw.randint(1, position)
            tokens = [draw.randrange(-1 if i < prompt else 0, vocabulary) for i in range(position)]
            edits = [WriteTokens(row, 0, tokens), SetSampling(row, prompt, random_params(draw, vocabulary))]
            tables.apply(edits)
        return cls(tables, positions, random_logits(draw, vocabulary))

    def on_host(self) -> tuple[list[int], list[TokenLogprob | None]]:
        """Return tokens and log-probabilities by the host's sampler."""
        return sample(self.logits_NV, range(ROWS), self.positions, self.tables, TorchBackend("float32").argmax)

    def on_card(self, backend: CudaBackend) -> tuple[list[int], list[TokenLogprob | None]]:
        """Return what the card draws."""
        vocabulary = self.logits_NV.shape[1]
        assert not any(is_of_host(self.tables, n, self.positions[n], vocabulary, drafted=False) for n in range(ROWS))
        backend.reserve(self.tables, ROWS, ROWS)
        columns, results = PlanColumns(), PlanResults()
        index_E, value_E = backend.tables.edits([WriteTokens(n, 0, self.tables.tokens[n].tolist()) for n in range(ROWS)])
        index, value = columns.add(index_E), columns.add(value_E)
        draws = CardDraws(backend, self.tables, columns, results)
        for name in (SCORES, COUNTS):
            backend.scratch.need(name, 8 * ROWS * vocabulary)
        token = results.room(4 * ROWS)
        group = draws.group(0, list(zip(range(ROWS), self.positions, self.tables.sampling, strict=True)), vocabulary)
        backend.scratch.need("result test", results.nbytes)
        results.memory = backend.scratch.tensor("result test", results.nbytes)
        columns.send(backend.transfers, "plan")
        backend.ops.edit(backend.tables.tokens, columns.at(index), columns.at(value), index_E.size)
        backend.transfers.send(LOGITS, self.logits_NV.numpy())
        draws.queue(group, backend.scratch[LOGITS], vocabulary, results.at(token))
        (came,) = backend.transfers.fetch([results.memory])
        outcome = SweepOutcome(SweepPlan(1))
        counts = [p.logprobs for p in self.tables.sampling]
        SampledCall([(n, n, 1) for n in range(ROWS)], [group], counts, vocabulary, token).read(came.numpy(), outcome)
        return [outcome.tokens[n] for n in range(ROWS)], [outcome.logprobs[n] for n in range(ROWS)]


def assert_equal_draws(backend: CudaBackend, seed: int, vocabularies: tuple[int, ...]) -> None:
    """Draw ``ROWS`` tokens both ways, and compare them and their log-probabilities."""
    draw = random.Random(seed)
    drawing = Drawing.random(draw, draw.choice(vocabularies))
    tokens, logprobs = drawing.on_card(backend)
    expected, theirs = drawing.on_host()
    assert tokens == expected
    for found, wanted in zip(logprobs, theirs, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert [id for id, _ in found.top] == [id for id, _ in wanted.top]
            values = [found.logprob, *(value for _, value in found.top)]
            exact = [wanted.logprob, *(value for _, value in wanted.top)]
            assert np.allclose(values, exact, rtol=1e-12, atol=1e-12)

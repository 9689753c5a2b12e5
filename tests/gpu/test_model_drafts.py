"""Drafts that a draft model draws in a row of its own, in the sweep that verifies them: the bits of drawing one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import DraftRow, Edit, Step, SweepPlan, TokenLogprob, WriteTokens
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY
from blockwright.tests.gpu.test_tier_drafts import HEAD, Make, TierRig, families
from blockwright.tests.gpu.test_verification import WARM, one_by_one

__all__ = ["families"]


class ModelRig(TierRig):
    """A rig in which the layers below the exit, with its head, are the draft model, whose row has KV of its own."""

    def round(  # type: ignore[override]
        self, row: tuple[int, int, int], drafting: tuple[int, int, int], edits: Sequence[Edit] = ()
    ) -> SweepPlan:
        """A plan in which ``drafting`` (table row, first position, lead) draws the drafts of ``row``: row, start, count."""
        drafts, lead = row[2] - 1, drafting[2]
        plan = self.plan([row, (*drafting[:2], lead + drafts - 1)], [0], edits)
        plan.verify, plan.draft_rows = [0], [DraftRow(1, 0, lead)]
        plan.steps = [
            step
            for place in range(drafts)
            for step in (Step(0, [1], place=place), Step(HEAD, [1], head=True, place=place, draft=True))
        ]
        plan.steps += [Step(run, [0]) for run in self.runs]
        return plan


def drafted(
    rig: ModelRig, row: int, prompt: Sequence[int], count: int, params: SamplingParams, lengths: Sequence[int]
) -> tuple[list[int], list[TokenLogprob | None], list[int]]:
    """Tokens, their log-probabilities, and how many each round yielded. ``lengths``: the drafts of rounds, in turns."""
    edits = [*rig.admit(row, prompt, params), *rig.admit(row + 1, prompt, params)]
    result = rig.run([(row, 0, len(prompt))], [0], edits)
    tokens = [*result.tokens]
    logprobs = [*result.logprobs]
    rounds = list[int]()
    computed = 0  # of the draft row
    while len(tokens) < count:
        known, drafts = len(prompt) + len(tokens), lengths[len(rounds) % len(lengths)]
        write = WriteTokens(row + 1, computed, [*prompt, *tokens][computed:])
        plan = rig.round((row, known - 1, drafts + 1), (row + 1, computed, known - computed), [write])
        result = rig.executor.execute(plan)
        tokens += [*result.tokens, *result.verified[0]]
        logprobs += [*result.logprobs, *result.verified_logprobs[0]]
        rounds.append(1 + len(result.verified[0]))
        computed = min(known + drafts - 1, len(prompt) + len(tokens) - 1)
    return tokens, logprobs, rounds


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_of_a_model_change_no_token(make_backend: Make, families: object, params: SamplingParams, dtype: str) -> None:
    """Its first pass computes the prompt, later ones one position or two, and rejected drafts are written over."""
    rig = ModelRig(make_backend(dtype), families("own"))  # type: ignore[operator]
    prompt = reference.prompt_of(21)
    count = 40
    params = replace(params, logprobs=3)
    tokens, logprobs = one_by_one(rig, 0, prompt, count, params)
    got, entries, rounds = drafted(rig, 1, prompt, count, params, [4, 1, 8, 2])
    assert got[:count] == tokens
    assert entries[:count] == logprobs
    assert sum(rounds) > len(rounds), "some drafts stand"
    assert min(rounds) == 1, "and some do not"


@pytest.mark.best
def test_a_draft_row_draws_what_an_exit_does(make_backend: Make, families: object) -> None:
    """The draft model is the exit's: its row, with KV of its own, draws the very drafts that the exit draws in the sweep."""
    rig = ModelRig(make_backend(), families("own"))  # type: ignore[operator]
    prompt = reference.prompt_of(9)
    first = rig.run([(0, 0, 9), (1, 0, 9)], [0, 1], [*rig.admit(0, prompt, WARM), *rig.admit(1, prompt, WARM)])
    rig.executor.execute(TierRig.round(rig, [(0, 9, 6)], [0]))
    edits = [*rig.admit(2, [*prompt, first.tokens[0]], WARM)]
    rig.executor.execute(rig.round((1, 9, 6), (2, 0, 10), edits))
    tokens = rig.executor.tables.tokens
    assert tokens[0, :16].tolist() == tokens[1, :16].tolist()
    differing = tokens[1, :15] != tokens[2, :15]  # where the target drew another token, it stands in the place of the draft
    assert differing.sum() <= 1

"""Drafts that an exit's head draws in the sweep that verifies them: the very bits of drawing one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.gpu.backend import Backend
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, Step, SweepPlan, TokenLogprob
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY, Rig, load, placing
from blockwright.tests.gpu.test_verification import WARM, one_by_one

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]
EXIT = 3  # layers below the exit, of 4
HEAD = 9  # run of its head


class TierRig(Rig):
    """A rig with the chain of the top tier, cut at the exit, and the exit's head besides."""

    def __init__(self, backend: Backend, path: Path) -> None:
        super().__init__(backend, path, cuts=[1 + 2 * EXIT, 1 + 2 * 4])
        self.executor.compose(HEAD, [self.head.component.id], EXIT)

    def _load(self, backend: Backend) -> None:
        self.head = self.checkpoint.at_exit(EXIT).specs(self.page_size, str(backend.dtype).removeprefix("torch."))[-1]
        self.placing = placing(backend, [*self.specs, self.head])
        self.commit("parameters", self.placing.end)
        known = {spec.component.id for spec in self.specs}
        for spec in self.specs if self.head.component.id in known else [*self.specs, self.head]:
            load(self.executor, spec, self.placing)

    def round(self, batch: Sequence[tuple[int, int, int]], drafting: Sequence[int], edits: Sequence[Edit] = ()) -> SweepPlan:
        """A plan in which a token is drawn after each batch row, and in the drafting ones behind drafts of the exit."""
        plan = self.plan(batch, list(range(len(batch))), edits)
        plan.verify = plan.drafting = list(drafting)
        steps = [Step(0, list(range(len(batch))), place=0)]
        for place in range(max(plan.count[i] for i in drafting)):
            below = [i for i in drafting if plan.count[i] > place]
            drawn = [i for i in drafting if plan.count[i] > place + 1]
            steps += [Step(0, below, place=place)] if place else []
            steps += [Step(HEAD, drawn, head=True, place=place, draft=True)] if drawn else []
        plan.steps = [*steps, *plan.steps[1:]]
        return plan


@pytest.fixture(scope="module")
def families(checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``families(head)``: a family whose exit has a head of its own, or the top's."""
    folder = tmp_path_factory.mktemp("families")

    def get(head: str) -> Path:
        target = folder / head
        if not target.exists():
            make_family(checkpoint("llama", num_hidden_layers=4), target, {EXIT: head})
        return target

    return get


def drafted(
    rig: TierRig, row: int, prompt: Sequence[int], count: int, params: SamplingParams, lengths: Sequence[int]
) -> tuple[list[int], list[TokenLogprob | None], list[int]]:
    """Tokens, their log-probabilities, and how many each round yielded. ``lengths``: the drafts of rounds, in turns."""
    result = rig.run([(row, 0, len(prompt))], [0], rig.admit(row, prompt, params))
    tokens = [*result.tokens]
    logprobs = [*result.logprobs]
    rounds = list[int]()
    while len(tokens) < count:
        start, drafts = len(prompt) + len(tokens) - 1, lengths[len(rounds) % len(lengths)]
        result = rig.executor.execute(rig.round([(row, start, drafts + 1)], [0]))
        tokens += [*result.tokens, *result.verified[0]]
        logprobs += [*result.logprobs, *result.verified_logprobs[0]]
        rounds.append(1 + len(result.verified[0]))
    return tokens, logprobs, rounds


@claim("Drafts by a tier change neither tokens nor log-probabilities, bit for bit", of="drafts")
@pytest.mark.parametrize("head", ["own", "shared"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_of_an_exit_change_no_token(
    make_backend: Make, families: Callable[[str], Path], params: SamplingParams, dtype: str, head: str
) -> None:
    rig = TierRig(make_backend(dtype), families(head))
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
def test_rows_that_draft_and_rows_that_do_not_run_together(make_backend: Make, families: Callable[[str], Path]) -> None:
    rig, prompt = TierRig(make_backend(), families("own")), reference.prompt_of(9)
    want = [one_by_one(rig, 0, prompt[n:], 24, params)[0] for n, params in enumerate((GREEDY, WARM, GREEDY))]
    edits = [edit for n, params in enumerate((GREEDY, WARM, GREEDY)) for edit in rig.admit(1 + n, prompt[n:], params)]
    first = rig.run([(1 + n, 0, 9 - n) for n in range(3)], [0, 1, 2], edits)
    got = [[token] for token in first.tokens]
    while min(map(len, got)) < 16:
        starts = [9 - n + len(got[n]) - 1 for n in range(3)]
        result = rig.executor.execute(rig.round([(3, starts[2], 5), (2, starts[1], 1), (1, starts[0], 3)], [0, 2]))
        for n, (token, more) in enumerate(
            zip(reversed(result.tokens), (result.verified[1], [], result.verified[0]), strict=True)
        ):
            got[n] += [token, *more]
    assert [tokens[:16] for tokens in got] == [tokens[:16] for tokens in want]

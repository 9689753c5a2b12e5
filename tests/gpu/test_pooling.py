"""Vectors of embedders equal transformers', with the same bits however a prompt is chunked, on every back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.model.config import NormConfig
from blockwright.gpu.sampling.pooling import RowPool, normed
from blockwright.policies.plan.pooling import MODES, Pooling
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import NOT_FINITE, WriteTokens
from blockwright.tests import embedders
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig

TOLERANCE = 1e-5
EVERY = Pooling(modes=list(MODES), normalize=True)


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder that pools in every mode, saved without head."""
    target = tmp_path_factory.mktemp("embedder") / "model"
    return embedders.make_embedder(checkpoint("qwen3"), target, list(MODES), bare=True)


def params(pooling: Pooling) -> SamplingParams:
    return SamplingParams(temperature=0.0, pooling=pooling)


def vector(rig: Rig, row: int, prompt: Sequence[int], pooling: Pooling, chunk: int = 512) -> bytes:
    """The vector of a prompt that runs alone, in chunks."""
    edits = rig.admit(row, prompt, params(pooling), len(prompt))
    for start in range(0, len(prompt), chunk):
        count = min(chunk, len(prompt) - start)
        plan = rig.plan([(row, start, count)], [0] if start + count == len(prompt) else [], edits)
        plan.score, edits = [0], []
        result = rig.executor.execute(plan)
        assert result.scores == [[]]
    assert result.tokens == [0]
    ((place, found),) = result.vectors
    assert place == 0
    return found


@claim(
    "An embedder's vectors equal the ones of transformers within 1e-5, in every pooling mode of sentence-transformers",
    of="embeddings",
)
def test_vectors_are_transformers(make_backend: Callable[..., Any], folder: Path) -> None:
    rig = Rig(make_backend(), folder)
    prompt = list(reference.prompt_of(45))
    found = np.frombuffer(vector(rig, 1, prompt, EVERY), "<f4")
    state_TD = embedders.states(embedders.base_model(folder), prompt)
    want = embedders.pooled(state_TD, MODES)
    assert found.shape == want.shape == (6 * 64,)
    assert np.abs(found - want).max() < TOLERANCE
    for mode in MODES:
        one = Pooling(modes=[mode], dimensions=24)
        found = np.frombuffer(vector(rig, 2, prompt, one), "<f4")
        want = embedders.pooled(state_TD, [mode], normalize=False, dimensions=24)
        assert np.abs(found - want).max() < TOLERANCE * max(1.0, np.abs(want).max()), mode


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@claim("The bits of a vector depend neither on the chunks of its prompt nor on the rest of the batch", of="embeddings")
def test_the_same_bits_in_chunks_and_batches(make_backend: Callable[..., Any], folder: Path, dtype: str) -> None:
    rig = Rig(make_backend(dtype), folder)
    prompt = list(reference.prompt_of(53))
    alone = vector(rig, 0, prompt, EVERY)
    assert [vector(rig, 1, prompt, EVERY, chunk) for chunk in (1, 7, 32)] == [alone] * 3
    others = [list(reference.prompt_of(size)) for size in (9, 40, 21)]
    edits = [edit for row, one in enumerate(others) for edit in rig.admit(row, one, params(EVERY), len(one))]
    edits += rig.admit(3, prompt, params(EVERY), len(prompt))
    plan = rig.plan([(0, 0, 9), (1, 0, 17), (2, 0, 21), (3, 0, 53)], [0, 2, 3], edits)
    plan.score = [0, 1, 2, 3]
    result = rig.executor.execute(plan)
    assert dict(result.vectors)[3] == alone
    assert dict(result.vectors).keys() == {0, 2, 3}
    plan = rig.plan([(1, 17, 23)], [0])
    plan.score = [0]
    ((_, second),) = rig.executor.execute(plan).vectors
    assert second == vector(rig, 4, others[1], EVERY)


def test_the_last_position_is_enough_for_its_state(make_backend: Callable[..., Any], folder: Path) -> None:
    """No state of an earlier position is computed, as behind a prefix that was found."""
    rig = Rig(make_backend(), folder)
    prompt = list(reference.prompt_of(33))
    last = Pooling(modes=["lasttoken"], normalize=True)
    whole = vector(rig, 0, prompt, last)
    rig.run([(0, 0, 32)], [], rig.admit(1, prompt, params(last), 33))
    result = rig.run([(0, 32, 1)], [0])
    assert result.vectors == [(0, whole)]
    with pytest.raises(ExecutorError, match="states of 0 positions are pooled, and the next are of 32"):
        rig.run([(1, 32, 1)], [0], rig.admit(1, prompt, params(EVERY), 33))


def test_logits_of_two_tokens(make_backend: Callable[..., Any], checkpoint: Callable[..., Path]) -> None:
    """A row that wants logits beside one that draws: the head has logits."""
    path, prompt = checkpoint("qwen3"), list(reference.prompt_of(20))
    rig = Rig(make_backend(), path)
    edits = [*rig.admit(0, prompt, params(Pooling(tokens=[9, 5])), 20), *rig.admit(1, prompt, length=21)]
    result = rig.run([(0, 0, 20), (1, 0, 20)], [0, 1], edits)
    want = reference.logits(path, prompt)[-1]
    ((place, found),) = result.vectors
    assert place == 0
    assert np.abs(np.frombuffer(found, "<f4") - want[[9, 5]].numpy()).max() < 5e-5
    assert result.tokens == [0, int(want.argmax())]


def test_logits_beside_a_row_with_drafts(make_backend: Callable[..., Any], checkpoint: Callable[..., Path]) -> None:
    path, prompt = checkpoint("qwen3"), list(reference.prompt_of(20))
    rig = Rig(make_backend(), path)
    pooling = Pooling(tokens=[9, 5])
    alone = rig.run([(0, 0, 20)], [0], rig.admit(0, prompt, params(pooling), 20)).vectors
    rig.run([(1, 0, 20)], [], rig.admit(1, prompt, length=30))
    edits = [*rig.admit(2, prompt, params(pooling), 20), WriteTokens(1, 20, [7, 8])]
    plan = rig.plan([(2, 0, 20), (1, 19, 3)], [0, 1], edits)
    plan.verify = [1]
    result = rig.executor.execute(plan)
    assert result.vectors == alone
    assert (len(result.vectors), result.tokens[0]) == (1, 0)


def test_what_is_no_number_fails(make_backend: Callable[..., Any], folder: Path) -> None:
    rig = Rig(make_backend(), folder)
    prompt = list(reference.prompt_of(5))
    edits = rig.admit(0, prompt, params(EVERY), 5)
    states = rig.executor.backend.states
    rig.executor.backend.states = lambda run, hidden: states(run, hidden) * np.inf  # type: ignore[method-assign]
    plan = rig.plan([(0, 0, 5)], [0], edits)
    result = rig.executor.execute(plan)
    assert result.tokens == [NOT_FINITE]
    assert result.vectors == []


def test_a_vector_of_zeros_has_no_direction() -> None:
    pool = RowPool(Pooling(modes=["mean"], normalize=True))
    pool.add(np.zeros((3, 8)), 0)
    assert np.frombuffer(pool.vector(), "<f4").tolist() == [0.0] * 8


NORMS = [NormConfig(eps=1e-6), NormConfig(eps=1e-5, kind="layer")]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [1, 8, 40, 129, 1000, 4096])
def test_other_rows_change_no_bit_of_a_row(norm: NormConfig, width: int) -> None:
    hidden = torch.randn(33, width, generator=torch.Generator().manual_seed(width))
    weight_D = np.linspace(0.5, 1.5, width)
    together = normed(hidden, weight_D, weight_D, norm)
    alone = [normed(hidden[i : i + 1].clone(), weight_D, weight_D, norm)[0] for i in range(33)]
    assert [row.tobytes() for row in together] == [row.tobytes() for row in alone]


@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_torchs(norm: NormConfig) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (torch.randn(shape, generator=generator) for shape in ((7, 40), (40,), (40,)))
    vectors = [one.double().numpy() for one in (weight, bias)]
    if norm.kind == "layer":
        want = torch.nn.functional.layer_norm(hidden, (40,), weight, bias, norm.eps)
        found = normed(hidden, vectors[0], vectors[1], norm)
    else:
        want = torch.nn.functional.rms_norm(hidden, (40,), weight, norm.eps)
        found = normed(hidden, vectors[0], None, norm)
    assert np.abs(found - want.numpy()).max() < 1e-5


def test_a_row_fails_alone_if_its_head_gives_something_else(
    make_backend: Callable[..., Any], checkpoint: Callable[..., Path], folder: Path
) -> None:
    """A model was replaced by one of the other kind while the request came: no worker ends for it."""
    rig = Rig(make_backend(), folder)
    edits = [*rig.admit(0, [4, 5, 6], length=8), *rig.admit(1, [4, 5, 6], params(EVERY), 8)]
    result = rig.run([(0, 0, 3), (1, 0, 3)], [0, 1], edits)
    assert result.tokens == [NOT_FINITE, 0]
    assert [place for place, _ in result.vectors] == [1]
    rig = Rig(make_backend(), checkpoint("qwen3"))
    edits = [*rig.admit(0, [4, 5, 6], length=8), *rig.admit(1, [4, 5, 6], params(EVERY), 8)]
    result = rig.run([(0, 0, 3), (1, 0, 3)], [0, 1], edits)
    assert result.tokens[1] == NOT_FINITE
    assert result.vectors == []

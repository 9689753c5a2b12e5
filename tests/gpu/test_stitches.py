"""A chain with stitches on every back end: as transformers computes it, and with the same bits beside any other rows."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import BackendError, ExecutorError
from blockwright.gpu.select import open_backend
from blockwright.policies.adaptive.stitches import StitchPoint
from blockwright.policies.adaptive.variants import Swap, variant_source
from blockwright.policies.model.chain import Kind
from blockwright.tests.claims import claim
from blockwright.tests.gpu.conftest import INTERPRETED
from blockwright.tests.gpu.reference import load, prompt_of
from blockwright.tests.gpu.rig import Rig
from blockwright.tests.gpu.test_bits import through_a_device
from blockwright.tests.zoo.equivalence.stitched_models import NAMES, random_stitches, zoo_of_widths
from blockwright.zoo.equivalence.comparison import open_comparison
from blockwright.zoo.equivalence.joints import Stitch, read_joints
from blockwright.zoo.zoo import Zoo

Make = Callable[..., Backend]
LAYER = 1  # of the narrow model, that the wide model's takes the place of
ENTER, LEAVE = StitchPoint(3, 3), StitchPoint(5, 5)
CPUS = [] if INTERPRETED else ["native", "torch"]


@dataclass(frozen=True, slots=True)
class Stitched:
    """The folders of both models, the stitches around the wide layer, and the source of the narrow model's variant."""

    narrow: Path
    wide: Path
    enter: Stitch
    leave: Stitch
    source: str


@pytest.fixture(scope="module")
def stitched(tmp_path_factory: pytest.TempPathFactory) -> Stitched:
    folder = tmp_path_factory.mktemp("stitched")
    root = zoo_of_widths(folder)
    random_stitches(root)
    joints = read_joints(Zoo(root), *open_comparison(root, *NAMES).components)
    enter, leave = joints.there[ENTER], joints.back[LEAVE]
    ids = (enter.id, *Zoo(root).chain(NAMES[1]).components[3:5], leave.id)
    source = variant_source(str(root / "chains" / NAMES[0]), [Swap(3, 5, ids)])
    return Stitched(folder / NAMES[0], folder / NAMES[1], enter, leave, source)


@torch.no_grad()
def through(path: Path, first: int, last: int, states: torch.Tensor) -> torch.Tensor:
    """Return the states behind layers ``first`` to ``last - 1`` in transformers, which need one layer more behind them."""
    model = copy.deepcopy(load(path).model)
    model.layers = model.layers[first : last + 1]
    for number, layer in enumerate(model.layers):
        layer.self_attn.layer_idx = number
    return model(inputs_embeds=states, output_hidden_states=True, use_cache=False).hidden_states[last - first]


@torch.no_grad()
def their_logprobs(one: Stitched, tokens: list[int]) -> torch.Tensor:
    whole = load(one.narrow)
    states = through(one.narrow, 0, LAYER, whole.model.embed_tokens(torch.tensor([tokens])))
    states = F.linear(states, one.enter.weight, one.enter.bias)
    states = F.linear(through(one.wide, LAYER, LAYER + 1, states), one.leave.weight, one.leave.bias)
    last = copy.deepcopy(whole)
    last.model.layers = last.model.layers[LAYER + 1 :]
    last.model.layers[0].self_attn.layer_idx = 0
    return last(inputs_embeds=states, use_cache=False).logits[0].float().log_softmax(-1)


@claim("A chain with stitches computes what its parts compute in transformers", of="adaptive")
@pytest.mark.parametrize("chunk", [5, 512])
@pytest.mark.parametrize("name", CPUS)
def test_it_is_what_transformers_computes(stitched: Stitched, name: str, chunk: int) -> None:
    tokens = list(prompt_of(40))
    ours = torch.tensor(Rig(open_backend(name, "float32", 1), stitched.source).logprobs(0, tokens, 25, chunk))
    assert torch.allclose(ours, their_logprobs(stitched, tokens)[24:], atol=1e-4)


@claim("A request through stitches has the same bits in any batch, chunk and page size", of="adaptive")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CPUS)
def test_nothing_else_changes_a_bit(stitched: Stitched, name: str, dtype: str) -> None:
    draw = random.Random(f"{name} {dtype}")
    tokens = [draw.randrange(3, 260) for _ in range(70)]
    whole = through_a_device(Rig(open_backend(name, dtype, 1), stitched.source), tokens, 55)
    for page_size, cuts in ((5, (2, 7)), (16, ())):
        rig = Rig(open_backend(name, dtype, 1), stitched.source, page_size, cuts)
        found = through_a_device(rig, tokens, draw.randint(30, 60), draw)
        shared = min(len(found), len(whole))
        assert found[-shared:] == whole[-shared:]


def test_every_back_end_computes_it_or_says_why_not(stitched: Stitched, make_backend: Make) -> None:
    backend, tokens = make_backend(), list(prompt_of(30))
    if backend.name.startswith("cuda"):
        with pytest.raises(BackendError, match="stitch of widths 64 and 96 is not computed on a card; serve its chain on"):
            Rig(backend, stitched.source)
    else:
        ours = torch.tensor(Rig(backend, stitched.source).logprobs(0, tokens, 20, 7))
        assert torch.allclose(ours, their_logprobs(stitched, tokens)[19:], atol=1e-4)


@pytest.mark.skipif(INTERPRETED, reason="not of a card")
def test_states_are_rounded_at_its_border(stitched: Stitched) -> None:
    """A stitch rounds at its border, as every component does: the next one reads values of the model's type."""
    rig = Rig(open_backend("native", "bfloat16", 1), stitched.source)
    at = next(place for place, spec in enumerate(rig.specs) if spec.component.kind is Kind.STITCH)
    run = rig.executor._runs[1]
    assert (run.components, run.width, run.out) == ((rig.specs[at].component.id,), 64, 96)
    hidden_TD = torch.randn(9, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    out_TE = torch.empty(9, 96, dtype=torch.bfloat16)
    rig.executor.backend.stitch(run.body, hidden_TD, out_TE)
    weight, bias = stitched.enter.weight.bfloat16().double(), stitched.enter.bias.bfloat16().double()
    exact_TE = F.linear(hidden_TD.double(), weight, bias)
    assert float(((out_TE.double() - exact_TE) / exact_TE.abs().clamp(min=0.5)).abs().max()) < 2**-8


@pytest.mark.skipif(INTERPRETED, reason="not of a card")
def test_a_run_has_one_width(stitched: Stitched) -> None:
    rig = Rig(open_backend("native", "float32", 1), stitched.source)
    ids = [spec.component.id for spec in rig.specs]
    with pytest.raises(ExecutorError, match="run 9 has a stitch among 2 components; a stitch is a run of its own"):
        rig.executor.compose(9, ids[2:4], 1)

"""The native back end against dense torch in float64: shapes, layouts, windows, biases, instruction sets."""

from __future__ import annotations

import math

import pytest
import torch

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.model.config import HeadConfig, NormConfig, RopeConfig
from blockwright.gpu.tables import Tables
from blockwright.tests.claims import claim
from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape, difference, instruction_sets, pack_whole, spec_of

BASE = Shape()
# largest difference of a logit as a share of the largest logit (3.2e-6 with AVX2); bfloat16 rounds inside components too
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 0.05}
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
EACH_SET = pytest.mark.parametrize(
    ("instruction_set", "dtype"),
    [(name, dtype) for dtype in TOLERANCE for name in instruction_sets(str(dtype).removeprefix("torch."))],
)
LLAMA3 = RopeConfig(
    theta=500000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=32
)

SHAPES = {
    "base": BASE,
    "odd-widths": Shape(hidden=37, intermediate=45, vocabulary=131),
    "one-panel": Shape(hidden=32, intermediate=16, vocabulary=33),
    "multi-query": Shape(heads=8, kv_heads=1),
    "wide-group": Shape(heads=40, kv_heads=1, head_dim=4),
    "multi-head": Shape(heads=3, kv_heads=3, head_dim=32),
    "head-64": Shape(heads=4, kv_heads=2, head_dim=64),
    "head-128": Shape(heads=2, kv_heads=1, head_dim=128),
    "head-112": Shape(heads=2, kv_heads=1, head_dim=112),
    "head-6": Shape(head_dim=6),
    "head-24": Shape(head_dim=24),
    "window": Shape(window=11),
    "window-1": Shape(window=1),
    "capped": Shape(softcap=3.0, kv_heads=4),
    "capped-window": Shape(softcap=3.0, window=11),
    "long-products": Shape(intermediate=1100),
    "biases": Shape(biases=True, intermediate=50, head_dim=10),
    "llama3": Shape(rope=LLAMA3),
    "linear": Shape(rope=RopeConfig(theta=10000.0, kind="linear", factor=4.0)),
}


@BOTH
@pytest.mark.usefixtures("every_instruction_set")
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_match_dense_torch(name: str, dtype: torch.dtype) -> None:
    rig = NativeRig(Chain(SHAPES[name], dtype))
    ours = rig.logits([(0, 0, 45), (1, 0, 1), (2, 0, 20)])
    for row, first, length in ((0, 0, 45), (1, 45, 1), (2, 46, 20)):
        exact = rig.chain.logits(rig.tokens(row, length))
        assert difference(ours[first : first + length], exact) < TOLERANCE[dtype]


@BOTH
@pytest.mark.parametrize("page_size", [1, 2, 3, 8, 16, 24, 32, 48])
@pytest.mark.parametrize("window", [None, 37])
def test_page_sizes_match_dense_torch(page_size: int, window: int | None, dtype: torch.dtype) -> None:
    rig = NativeRig(
        Chain(Shape(window=window, layers=1), dtype), page_size=page_size, rows=1, max_length=320, max_tokens=300
    )
    ours = rig.logits([(0, 0, 300)])
    assert difference(ours, rig.chain.logits(rig.tokens(0, 300))) < TOLERANCE[dtype]


@claim("Every instruction set of the processor gives the logits of dense torch within one tolerance", of="numerics")
@EACH_SET
@pytest.mark.parametrize("name", ["base", "odd-widths", "head-128", "head-24", "window", "capped-window", "long-products"])
def test_instruction_sets_match_dense_torch(instruction_set: str, dtype: torch.dtype, name: str) -> None:
    rig = NativeRig(Chain(SHAPES[name], dtype), threads=2, instruction_set=instruction_set)
    assert rig.backend.numerics == f"native-{instruction_set}-{str(dtype).removeprefix('torch.')}"
    ours = torch.cat((rig.logits([(0, 0, 29)]), rig.in_chunks(0, 45, 1)[29:]))
    assert difference(ours, rig.chain.logits(rig.tokens(0, 45))) < TOLERANCE[dtype]


@EACH_SET
@pytest.mark.parametrize(("width", "vocabulary"), [(1, 1), (31, 33), (64, 32), (129, 100), (300, 513), (4500, 40)])
def test_products_of_any_size(width: int, vocabulary: int, instruction_set: str, dtype: torch.dtype) -> None:
    """A head is a norm and a product: rows beyond a tile and beyond a block, columns and widths beyond whole panels,
    widths beyond a stretch of sums."""
    generator = torch.Generator().manual_seed(1)
    backend = NativeBackend(str(dtype).removeprefix("torch."), 2, instruction_set)
    backend.reserve(Tables(1, 16, 1, 16), 400, 1)
    config = HeadConfig(vocabulary=vocabulary, hidden=width, norm=NormConfig(eps=0.0))
    weight_VD = torch.randn(vocabulary, width, generator=generator).to(dtype)
    spec = spec_of(config, None)
    packed = pack_whole(backend, spec, {"weight": weight_VD, "norm": torch.ones(width)})
    run = backend.compose([packed], 0)
    hidden_ND = torch.randn(400, width, generator=generator).to(dtype)
    wide_ND = hidden_ND.double()
    exact = (wide_ND * torch.rsqrt(wide_ND.pow(2).mean(-1, keepdim=True))) @ weight_VD.double().T
    whole = backend.logits(run, hidden_ND).clone()
    assert difference(whole, exact) < (1e-6 if dtype == torch.float32 else 0.01)
    for rows in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25, 49, 191, 193):
        assert torch.equal(backend.logits(run, hidden_ND[:rows]), whole[:rows])


@EACH_SET
def test_special_values_stay_in_their_row_and_column(instruction_set: str, dtype: torch.dtype) -> None:
    """Infinities, NaN and the smallest numbers give a row the same values alone as between others, which keep theirs."""
    generator = torch.Generator().manual_seed(2)
    backend = NativeBackend(str(dtype).removeprefix("torch."), 2, instruction_set)
    backend.reserve(Tables(1, 16, 1, 16), 64, 1)
    width, vocabulary = 1100, 70
    weight_VD = torch.randn(vocabulary, width, generator=generator).to(dtype)
    weight_VD[3, 700] = math.inf
    weight_VD[40, 0] = math.nan
    weight_VD[69, 1099] = 3e38
    weight_VD[50] = 1e-39 * torch.sign(weight_VD[50])
    spec = spec_of(HeadConfig(vocabulary=vocabulary, hidden=width, norm=NormConfig(eps=1e-5)), None)
    run = backend.compose([pack_whole(backend, spec, {"weight": weight_VD, "norm": torch.ones(width)})], 0)
    hidden_ND = torch.randn(64, width, generator=generator).to(dtype)
    hidden_ND[5, 600] = math.nan
    hidden_ND[17, 0] = -math.inf
    hidden_ND[20] = 1e-39
    hidden_ND[21] = 0.0
    whole = backend.logits(run, hidden_ND).clone()
    alone = torch.cat([backend.logits(run, hidden_ND[row : row + 1]).clone() for row in range(64)])
    assert torch.equal(whole.isnan(), alone.isnan())
    assert torch.equal(whole.nan_to_num(), alone.nan_to_num())
    assert whole[5].isnan().all()
    assert whole[:, 40].isnan().all()
    assert not whole[0, torch.arange(vocabulary) % 37 != 3].isnan().any()


@EACH_SET
def test_packing_is_exact(instruction_set: str, dtype: torch.dtype) -> None:
    """An identity projection of one-hot rows gives the normed weights back, to the bit."""
    backend = NativeBackend(str(dtype).removeprefix("torch."), 1, instruction_set)
    backend.reserve(Tables(1, 16, 1, 16), 70, 1)
    weight_VD = torch.randn(45, 70, generator=torch.Generator().manual_seed(2)).to(dtype)
    spec = spec_of(HeadConfig(vocabulary=45, hidden=70, norm=NormConfig(eps=0.0)), None)
    raw = {"weight": weight_VD, "norm": torch.full((70,), 0.5)}
    run = backend.compose([pack_whole(backend, spec, raw)], 0)
    scale = (torch.tensor(1 / math.sqrt(1 / 70)) * 0.5).to(dtype).float()
    logits = backend.logits(run, torch.eye(70).to(dtype))
    torch.testing.assert_close(logits, weight_VD.float().T * scale, rtol=1e-6 if dtype == torch.float32 else 4e-3, atol=0)


def test_hidden_states_are_of_the_model_type_at_every_cut() -> None:
    """A run of all components equals one run for each: nothing wider crosses a boundary."""
    rig = NativeRig(Chain(BASE, torch.bfloat16))
    whole = rig.forward([(0, 0, 30)]).clone()
    layer, pieces = 1, []
    for packed in rig.packed[:-1]:
        pieces.append(rig.backend.compose([packed], layer))
        layer += packed.spec.component.kv is not None
    joined = rig.body
    hidden = torch.full_like(whole, math.nan)
    for piece in pieces:
        rig.body = piece
        hidden = _continue(rig, hidden)
    rig.body = joined
    assert torch.equal(hidden, whole)


def _continue(rig: NativeRig, hidden_TD: torch.Tensor) -> torch.Tensor:
    import numpy as np

    from blockwright.gpu.backend import Batch

    batch = Batch(np.array([0], np.int32), np.array([0], np.int32), np.array([len(hidden_TD)], np.int32), hidden_TD)
    rig.backend.forward(rig.body, batch)
    return hidden_TD

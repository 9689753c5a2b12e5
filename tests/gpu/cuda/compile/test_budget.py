"""Every kernel compiles for an H100, within a budget of registers and shared memory; products by the wide instruction.

Triton compiles without a card or a driver. Only what a launch of ``TritonOps`` gives decides its machine code, so launches
are recorded with shapes of models that are served, and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from blockwright.gpu.cuda.ops import Choices, DeviceStep, Finish, Logprobs, Norm, Slots, Sum, Terms, Tiles, Weight
from blockwright.gpu.cuda.ops_triton import TritonOps
from blockwright.gpu.model.config import AttentionConfig, NormConfig, RopeConfig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.cuda.compile.compiled import Launches, Machine, compiled
from blockwright.tests.parts import some

SHARED = 227 << 10  # bytes of an H100's multiprocessor that a program may have
AT = 1 << 40  # an address
NORM = Norm(NormConfig(eps=1e-5), AT, AT)
LAYER = Norm(NormConfig(eps=1e-5, kind="layer"), AT, AT)
CHOICES = Choices(16, AT, AT, AT, AT, AT, 300, penalised=True, table=AT, table_stride=8192, scores=AT, counts=AT)
Launch = Callable[[TritonOps], None]


def attention(size: int, window: int | None = None, softcap: float = 0.0, qk_norm: str = "") -> AttentionConfig:
    return AttentionConfig(
        hidden=4096, heads=32, kv_heads=8, head_dim=size, norm=NormConfig(eps=1e-5), rope=RopeConfig(theta=1e4), scale=0.1,
        window=window, softcap=softcap, qk_norm=qk_norm,
    )  # fmt: skip


def step(tokens: int, tiles: dict[int, Tiles] | None = None) -> DeviceStep:
    return DeviceStep(tokens, AT, AT, AT, 8192, AT, 8192, 128, 8192, tiles or {}, AT, AT, 4)


def product(*rows: int, width: int = 4096, tokens: int = 1) -> Launch:
    return lambda ops: void(ops.product(AT, Weight(tuple((AT, n) for n in rows), width), AT, tokens))


def attend(config: AttentionConfig, tokens: int) -> Launch:
    def launch(ops: TritonOps) -> None:
        some_tiles = {config.heads // config.kv_heads: Tiles(AT, tokens)}
        slots = Slots(AT, 64 * 2 * config.kv_heads * config.head_dim * ops.dtype.itemsize, 64)
        ops.attend(step(tokens, some_tiles), AT, config, slots, 0, AT, AT)

    return launch


def heads(config: AttentionConfig) -> Launch:
    slots = Slots(AT, 1 << 20, 64)
    norms = (NORM, NORM) if config.qk_norm else ()
    return lambda ops: ops.heads(
        step(32), Sum(AT, 4, 48 * config.head_dim, (), AT), config, norms, (AT, AT), AT, slots, 0, AT
    )


def deltas(ops: TritonOps) -> None:
    terms = Terms(AT, 3, 64, 4096)
    ops.shrink(step(32), AT, 4096, terms, AT)
    ops.expand(step(32), AT, terms, 6144, AT)


def void(_: Any) -> None:
    """Take a result that is not needed."""


# Launch, most registers, whether its products are wide and whether it loads ahead. float32 has no such products: it
# must not be rounded to tf32.
BFLOAT16: dict[str, tuple[Launch, int, bool, bool]] = {
    "decode-qkv": (product(4096, 1024, 1024), 130, True, True),
    "decode-gate-up": (product(14336, 14336), 130, True, True),
    "prefill-o": (product(4096, tokens=4096), 210, True, True),
    "prefill-gate-up": (product(14336, 14336, tokens=4096), 130, True, True),
    "odd-width": (product(1000, width=3000, tokens=100), 220, True, True),
    **{f"decode-attention-{size}": (attend(attention(size), 32), 180, True, True) for size in (64, 80, 96, 128, 256)},
    **{f"prefill-attention-{size}": (attend(attention(size), 2048), 255, True, True) for size in (64, 80, 96, 128, 256)},
    "window-and-cap": (attend(attention(256, window=4096, softcap=50.0), 2048), 255, True, True),
}
FLOAT32: dict[str, tuple[Launch, int, bool, bool]] = {
    "product": (product(4096, 1024, 1024), 130, False, True),
    **{f"attention-{size}": (attend(attention(size), 2048), 130, False, True) for size in (64, 80, 96, 128, 256)},
    **{f"split-attention-{size}": (attend(attention(size), 1), 130, False, True) for size in (64, 80, 96, 128, 256)},
}
ROWS: dict[str, tuple[Launch, int, bool, bool]] = {
    "heads": (heads(attention(128)), 130, False, False),
    "heads-normed": (heads(attention(128, qk_norm="head")), 130, False, False),
    "heads-normed-whole": (heads(attention(128, qk_norm="whole")), 130, False, False),
    "finish": (lambda ops: ops.finish(step(32), AT, 4096, Finish(Sum(AT, 4, 4096, (), AT)), NORM, AT), 80, False, False),
    "finish-wide": (
        lambda ops: ops.finish(step(32), AT, 16384, Finish(Sum(AT, 4, 16384, (), AT), post=NORM), LAYER, AT),
        130, False, False,
    ),
    "activate": (lambda ops: ops.activate(step(32), Sum(AT, 1, 28672, (), AT), "silu", True, AT), 64, False, False),
    "embed": (lambda ops: ops.embed(step(32), AT, 4096, 1.0, AT), 64, False, False),
    "fill": (lambda ops: ops.fill(step(32), AT, 4096, AT), 64, False, False),
    "logits": (lambda ops: ops.logits(step(32), Sum(AT, 1, 128256, (), AT), 2.0, 30.0, AT), 64, False, False),
    "deltas": (deltas, 180, False, False),
    "adapt": (lambda ops: ops.adapt(step(32), Sum(AT, 4, 4096, (), AT), AT, AT, AT, AT), 64, False, False),
    "draw": (lambda ops: ops.draw(AT, 32, 128256, AT, AT, AT), 230, False, False),
    "choose": (lambda ops: ops.choose(AT, 128256, CHOICES, AT), 255, False, False),
    "logprobs": (lambda ops: ops.logprobs(AT, 128256, 32, AT, 20, AT, Logprobs(AT, AT)), 230, False, False),
    "keep": (lambda ops: ops.keep(AT, 8192, 32, AT, AT, AT), 64, False, False),
    "gather": (lambda ops: ops.gather(AT, AT, AT, 32, 4096), 64, False, False),
    "put-hidden": (lambda ops: ops.put_hidden(step(32), AT, 4096, Slots(AT, 64 << 13, 64), 1), 64, False, False),
    "copy-slots": (lambda ops: ops.copy_slots(AT, AT, AT, 0, 12, 64 << 13), 64, False, False),
    "edit": (lambda ops: ops.edit(AT, AT, AT, 100), 64, False, False),
}  # fmt: skip
CASES = {
    **{f"bfloat16-{name}": (torch.bfloat16, *case) for name, case in (BFLOAT16 | ROWS).items()},
    **{f"float32-{name}": (torch.float32, *case) for name, case in (FLOAT32 | ROWS).items()},
}
DAILY = [
    "bfloat16-decode-qkv", "bfloat16-prefill-o", "bfloat16-odd-width", "bfloat16-decode-attention-128",
    "bfloat16-prefill-attention-128",
    "float32-product", "float32-split-attention-80", "bfloat16-heads", "bfloat16-finish", "bfloat16-deltas", "bfloat16-draw",
    "bfloat16-choose",
]  # fmt: skip


@claim("The CUDA kernels compile for an H100 within a budget of registers and shared memory, without spills", of="numerics")
@pytest.mark.parametrize("name", some(CASES, *DAILY))
def test_budget(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, launch, registers, wide, ahead = CASES[name]
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    launches = Launches()
    monkeypatch.setattr(JITFunction, "run", launches.runner())
    launch(TritonOps(dtype))
    assert launches.found
    made = [compiled(kernel, keywords, tmp_path) for kernel, keywords in launches.found]
    for machine in made:
        assert machine.stack == 0, f"{machine.kernel} spills {machine.stack} bytes"
        assert machine.registers <= registers, f"{machine.kernel} has {machine.registers} registers, not {registers}"
        assert machine.shared < SHARED, f"{machine.kernel} has {machine.shared} bytes of shared memory"
    _check(made[0], dtype, wide, ahead)


def _check(machine: Machine, dtype: torch.dtype, wide: bool, ahead: bool) -> None:
    """Narrow matrix instructions sum in another order: only low-rank terms, whose tile is always the same, have them."""
    assert machine.wgmma == wide
    assert machine.mma_sync == (machine.kernel in ("shrink", "expand") and dtype == torch.bfloat16)
    assert machine.copies or not ahead

"""A row's bits are those of the sources, whatever the compiler makes of them.

GCC 13 with AVX-512 rounded a product and a sum once in one copy of a loop and twice in another, so that bits depended on how
many rows were computed together. So compilers may not join them (``-ffp-contract=off``), and the sources say where they are
joined (``mul_add`` in ``vec.h``).
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from blockwright.gpu.cpu.native import library as native
from blockwright.tests.claims import claim
from blockwright.tests.gpu.native_oracle import Chain, NativeRig, Shape

ROOT = Path(__file__).parents[2]
SHAPES = [
    Shape(heads=6, kv_heads=2, head_dim=64, hidden=96),
    Shape(window=13, kv_heads=4, layers=1),
    Shape(heads=9, kv_heads=1, softcap=5.0, biases=True, layers=1),
    Shape(head_dim=20, hidden=50, intermediate=45),
]


def module() -> dict[str, list[str]]:
    """How the kernels are built."""
    [found] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    return found


@claim("Bits do not depend on the flags of the compiler", of="numerics")
def test_no_flag_lets_the_compiler_round_otherwise() -> None:
    flags = module()["extra-compile-args"]
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math", "-march=native"} & set(flags)


@pytest.fixture(scope="module", params=["-O1", "-O2 -mtune=znver3", "-O3 -mtune=skylake-avx512 -fno-tree-vectorize"])
def otherwise_compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    built = tmp_path_factory.mktemp("kernels") / "_cpu.so"
    flags = [flag for flag in module()["extra-compile-args"] if not flag.startswith(("-O", "-W"))]
    command = [compiler, *request.param.split(), *flags, "-fPIC", "-shared", "-w", *module()["sources"], "-o", str(built)]
    subprocess.run([*command, *module()["extra-link-args"]], cwd=ROOT, check=True)
    return built


def logits(shape: Shape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of a prompt at once, token by token, and of several rows together."""
    sizes = {"rows": 3, "max_length": 640, "max_tokens": 640}
    chain = Chain(shape, dtype)
    rig = NativeRig(chain, **sizes)
    found = [rig.logits([(2, 0, 200), (0, 0, 199), (1, 0, 93)])]
    return [*found, NativeRig(chain, **sizes).in_chunks(0, 300, 1), NativeRig(chain, **sizes).logits([(0, 0, 300)])]


@claim("Bits do not depend on the flags of the compiler", of="numerics")
@pytest.mark.nightly
@pytest.mark.usefixtures("every_instruction_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_another_compilation_has_the_same_bits(
    otherwise_compiled: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [logits(shape, dtype) for shape in SHAPES]
    monkeypatch.setattr(native, "LIBRARY", otherwise_compiled)
    native.library.cache_clear()
    try:
        for shape, before in zip(SHAPES, expected, strict=True):
            assert all(map(torch.equal, logits(shape, dtype), before)), shape
    finally:
        monkeypatch.undo()
        native.library.cache_clear()

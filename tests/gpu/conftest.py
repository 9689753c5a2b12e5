"""Back ends of this machine as fixtures: conformance tests run on each, the native one with each instruction set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from blockwright.gpu.backend import Backend
from blockwright.gpu.select import open_backend
from blockwright.tests.cap import CAP
from blockwright.tests.gpu import native_oracle
from blockwright.tests.gpu.native_oracle import instruction_sets
from blockwright.tests.parts import some

TYPES = ("float32", "bfloat16")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # in a process of its own (``cuda/test_interpreted.py``)
# Back ends beside the native one, by their names for ``open_backend``: an entry is all that one takes.
OTHERS = ["cuda-interpreted"] if INTERPRETED else ["torch", "cuda-mirror"]
if INTERPRETED:
    from blockwright.tests.gpu.cuda.interpreter import install

    install()
    torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make_backend" in metafunc.fixturenames:
        # more sets have kernels for bfloat16 than for float32; a test of that type says so in its name
        dtype = "bfloat16" if "bfloat16" in metafunc.function.__name__ else "float32"
        best, *others = instruction_sets(dtype) or [""]
        few = metafunc.definition.get_closest_marker("best")
        if few:
            others = []
        native = (
            {}
            if INTERPRETED
            else {"native": ("native", CAP), **{f"native-{name}": ("native", name) for name in others}}
            if best
            else {}
        )
        chosen: dict[str, Any] = {name: (name, "") for name in OTHERS} | native
        if native and few and "architecture" in metafunc.fixturenames:  # the reference back end has another test of each
            for name in OTHERS:
                chosen[name] = pytest.param(chosen[name], marks=pytest.mark.nightly)
        metafunc.parametrize("make_backend", list(chosen.values()), ids=list(chosen), indirect=True)


@pytest.fixture
def make_backend(request: pytest.FixtureRequest) -> Callable[..., Backend]:
    """``make_backend(dtype="float32")``: a fresh back end of one thread."""
    name, limit = request.param

    def make(dtype: str = "float32") -> Backend:
        return open_backend(name, dtype, 1, limit)

    return make


EVERY = list(dict.fromkeys(instruction_sets("bfloat16") + instruction_sets("float32")))


@pytest.fixture(scope="module", params=some(EVERY, *(sets[0] for sets in map(instruction_sets, TYPES) if sets)))
def every_instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """``NativeRig`` uses each in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_oracle, "LIMIT", request.param)
        yield

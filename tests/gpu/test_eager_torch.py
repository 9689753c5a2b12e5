"""What a worker's torch leaves out, and that it comes when it is asked for; in processes of their own, for torch is here."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from blockwright.gpu import eager_torch

WORKER = """
import inspect, sys
import blockwright.gpu.eager_torch as eager, blockwright.actors.worker.main as main
import torch
backend = main.open_backend("auto", "float32", 1, "")
assert torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3)] * 3).sum() == 6
inspect.getmodule(main.start)  # looks at all modules
assert not {*eager.TRACING, "torch._decomp", "torch._prims", "torch._refs"} & sys.modules.keys()
left_out = sys.modules[eager.LEFT_OUT]
assert not hasattr(left_out, "__file__")
"""
WHOLE = """
assert sys.modules[eager.LEFT_OUT] is not left_out and sys.modules[eager.LEFT_OUT].__file__
assert not any("Tracing" in type(finder).__name__ for finder in sys.meta_path)
table, rows = torch.empty(3, 4, device="meta"), torch.zeros(2, dtype=torch.long, device="meta")
assert torch.nn.functional.embedding(rows, table).shape == (2, 4)
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


COMPILED = "assert torch.compile(torch.special.bessel_j0, backend='eager')(torch.zeros(2)).sum() == 2"


@pytest.mark.parametrize(
    "asked",
    [
        "import torch._functorch.aot_autograd",
        *(pytest.param(more, marks=pytest.mark.nightly) for more in ("left_out.activate_meta", COMPILED)),
    ],
)
def test_a_worker_is_without_and_gets_the_rest_when_it_is_asked_for(asked: str) -> None:
    run(f"{WORKER}{asked}{WHOLE}")


def test_where_torch_is_imported_already_nothing_changes() -> None:
    assert inspect.getfile(sys.modules[eager_torch.LEFT_OUT]).startswith(torch.__path__[0])

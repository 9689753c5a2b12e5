"""The proof that a worker makes of its bits, on the mirror: what holds, what does not, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy_models import FAMILIES, drawn, write

from blockwright.gpu.backend import Backend
from blockwright.gpu.cuda import ops_torch, prove
from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.ops_torch import TorchOps
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.cuda.prove import ON_HOST, Prover
from blockwright.gpu.errors import BackendError
from blockwright.gpu.row_backend import RowPacked
from blockwright.gpu.select import FAST, open_backend, open_prover
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.loader import read_rows
from blockwright.tests.claims import claim
from blockwright.tests.parts import some

DEMO = Path(__file__).parents[4] / "examples" / "demo-checkpoint"
SHAPES = 7  # of the demo: embedding, attention, feed-forward, head; three pairs that follow each other


def loaded(backend: CudaBackend, folder: Path = DEMO) -> list[RowPacked]:
    packed = []
    for spec in Checkpoint.open(folder).specs(16, str(backend.dtype).removeprefix("torch.")):
        memory = {part.role: torch.zeros(part.nbytes, dtype=torch.uint8) for part in backend.parts(spec)}
        for part in backend.parts(spec):
            backend.pack(part, read_rows(spec.tensors[part.role], 0, part.shape[0]), memory[part.role])
        packed.append(backend.assemble(spec, memory))
    return packed  # type: ignore[return-value]


def prover_of(backend: CudaBackend, **more: Any) -> Prover:
    dtype = str(backend.dtype).removeprefix("torch.")
    return Prover(lambda: CudaBackend(backend.platform, dtype), ON_HOST, 512, **more)  # type: ignore[arg-type,return-value]


def proved(prover: Prover, packed: Sequence[RowPacked]) -> dict[str, Any]:
    for _ in prover.prove(packed):
        pass
    return prover.outcome.view()


@claim(
    "A worker on a card compares the bits of each of its shapes when it loads them, and says what it found", of="numerics"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_the_mirror_are_proved_once_for_each_shape(dtype: str) -> None:
    backend = open_mirror(dtype)
    prover = open_prover(backend, 512)  # type: ignore[arg-type]
    assert prover is not None
    found = proved(prover, loaded(backend))
    assert (found["invariant"], found["why"], found["shapes"], found["running"]) == (True, "", SHAPES, "")
    assert proved(prover, loaded(backend))["steps"] == found["steps"], "what is proved is not proved again"


@pytest.mark.parametrize("number", some(range(len(FAMILIES)), 5))
def test_every_architecture_is_proved(number: int, tmp_path: Path) -> None:
    model = drawn(number)
    folder = write(replace(model, config={**model.config, "num_hidden_layers": 2}), tmp_path)
    backend = open_mirror("float32")
    found = proved(prover_of(backend), loaded(backend, folder))
    assert found["invariant"], found["why"]
    assert found["shapes"] >= 3


@claim("A proof of bits that does not hold names the shape and what its bits depend on", of="numerics")
def test_products_of_a_library_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_mirror("float32", bits="fast")
    assert FAST in backend.numerics
    assert backend.numerics != open_mirror("float32").numerics
    fast = open_prover(backend, 512)  # type: ignore[arg-type]
    assert fast is not None
    said = proved(fast, loaded(backend))
    assert (said["invariant"], said["shapes"]) == (None, 0), "nothing is promised, and so nothing is proved"
    assert said["steps"] > 0, "kernels are launched before anything is served"
    found = proved(prover_of(backend), loaded(backend))
    assert found["invariant"] is False
    assert " of width 192 differ between chunks and one prefill" in found["why"]


Plant = Callable[[pytest.MonkeyPatch], None]


def _by_page(patch: pytest.MonkeyPatch) -> None:
    attend = TorchOps.attend

    def planted(self: Any, step: Any, q: int, config: Any, kv: Any, layer: int, out: int, scratch: int) -> None:
        attend(self, step, q, replace(config, scale=config.scale * (1 + (kv.page != 16) / 1024)), kv, layer, out, scratch)

    patch.setattr(TorchOps, "attend", planted)


def _by_rows(patch: pytest.MonkeyPatch) -> None:
    product = TorchOps.product

    def planted(self: Any, x: int, weight: Any, out: int, tokens: int) -> Any:
        found = product(self, x, weight, out, tokens)
        if tokens > ON_HOST.tokens:
            self._launch(lambda: ops_torch.floats(out, tokens, weight.outputs).mul_(1.0 + 2**-20))
        return found

    patch.setattr(TorchOps, "product", planted)


def _by_decode(patch: pytest.MonkeyPatch) -> None:
    product = TorchOps.product

    def planted(self: Any, x: int, weight: Any, out: int, tokens: int) -> Any:
        found = product(self, x, weight, out, tokens)
        if tokens == 1:
            self._launch(lambda: ops_torch.floats(out, tokens, weight.outputs).mul_(1.0 + 2**-20))
        return found

    patch.setattr(TorchOps, "product", planted)


@pytest.mark.parametrize(
    ("plant", "what"),
    [(_by_page, "between pages of 16 and 8 tokens"), (_by_rows, "beside other rows"), (_by_decode, "between ")],
)
def test_planted_dependences_are_found(plant: Plant, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_mirror("float32")
    plant(monkeypatch)
    assert f"differ {what}" in proved(prover_of(backend), loaded(backend))["why"]


def test_a_proof_ends_after_its_time_and_one_without_memory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_mirror("float32")
    found = proved(prover_of(backend, seconds=0.0), loaded(backend))
    assert (found["invariant"], found["why"]) == (
        False,
        "bits of embedding of width 192 could not be compared: 0 seconds were over",
    )

    def full(*_: object) -> Backend:
        raise BackendError("cuMemCreate of the CUDA driver failed with CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(prove._Proof, "_compose", full)
    found = proved(prover_of(backend), loaded(backend))
    assert found["invariant"] is False
    assert "could not be compared: cuMemCreate" in found["why"]


def test_what_is_not_a_card_has_nothing_to_prove() -> None:
    assert open_prover(open_backend("torch", "float32", 1), 512) is None
    with pytest.raises(BackendError, match="bits 'fast' is of a card, and back end 'torch' of the CPU"):
        open_backend("torch", "float32", 1, bits="fast")

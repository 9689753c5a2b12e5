"""Proofs of a worker's bits: what a load that is not proved changes, and which workers exchange pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker import proofs
from blockwright.actors.worker.messages import WorkerStatus
from blockwright.gpu.cuda.ops_torch import TorchOps, floats
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.cuda.prove import ProofState
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.model.lineage import lineages
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of

Checkpoints = Callable[..., Path]


async def status(rig: Rig) -> WorkerStatus:
    found: WorkerStatus = await rig.ref.status()
    return found


async def test_a_worker_says_what_it_has_proved(checkpoint: Checkpoints) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([path], backend="cuda-mirror")
    found = await status(rig)
    assert (found.proof["invariant"], found.numerics) == (True, "cuda-mirror-torch-float32")
    await rig.stop()
    rig = await Rig.start([path])
    assert (await status(rig)).proof == {}
    await rig.stop()


@claim("A worker whose bits depend on the batch exchanges no pages of what it loads from then on", of="numerics")
async def test_a_proof_that_does_not_hold_changes_the_numerics(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    product = TorchOps.product

    def planted(self: Any, x: int, weight: Any, out: int, tokens: int) -> Any:
        found = product(self, x, weight, out, tokens)
        if tokens == 1:
            self._launch(lambda: floats(out, tokens, weight.outputs).mul_(1.0 + 2**-16))
        return found

    path = checkpoint("llama")
    proved = await Rig.start([path], backend="cuda-mirror")
    (known,) = proved.worker.state.parts.routes.planned()
    await proved.stop()
    monkeypatch.setattr(TorchOps, "product", planted)
    rig = await Rig.start([path], backend="cuda-mirror", name="w3")
    found = await status(rig)
    assert found.proof["invariant"] is False
    assert f"results may depend on the batch: {found.proof['why']}" in caplog.text
    assert found.numerics == f"cuda-mirror-torch-float32-variant-w3-{rig.node.incarnation}"
    (local,) = rig.worker.state.parts.routes.planned()
    ours = {line for span in local.spans for line in span.lineages}
    theirs = {line for span in known.spans for line in span.lineages}
    assert ours
    assert not ours & theirs, "no page of the one is looked for by the other"
    restored = type(rig.worker.state).restore(rig.worker.state.snapshot())
    assert restored.digest() == rig.worker.state.digest()
    await rig.submit("r", list(prompt_of(20, seed=1)), 4)
    assert len(await rig.finish("r")) == 4
    await rig.stop()


def test_workers_of_other_numerics_have_no_page_in_common(checkpoint: Checkpoints) -> None:
    names = [
        open_backend("native", "float32", 1).numerics,
        open_backend("torch", "float32", 1).numerics,
        open_mirror("float32").numerics,
        open_mirror("bfloat16").numerics,
        open_mirror("float32", bits="fast").numerics,
        "cuda-sm90-triton-3.6.0-aa-float32",
        "cuda-sm90-triton-3.7.1-aa-float32",
        "cuda-sm80-triton-3.6.0-aa-float32",
        "cuda-sm90-fast-torch-2.11-triton-3.6.0-aa-float32",
    ]
    chain = [spec.component for spec in Checkpoint.open(checkpoint("llama")).specs(16, "float32")]
    lines = [set(lineages(chain, name)) for name in names]
    assert len(set.union(*lines)) == sum(map(len, lines)), "each depth's pages are other pages on each"


def test_long_proofs_are_in_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    made = proofs.Proofs.__new__(proofs.Proofs)
    made._prover = type("OfNothing", (), {"outcome": ProofState()})()  # type: ignore[assignment]
    state = made._prover.outcome  # type: ignore[union-attr]
    assert made.progress == {}
    state.running, state.steps = "mlp of width 64", 3
    state.seconds = 0.2
    assert made.progress == {}, "a short one is not worth a line"
    state.seconds = 12.3
    assert made.progress == {"preparing": "mlp of width 64, 3 steps in 12 s"}
    state.running = ""
    assert made.progress == {}

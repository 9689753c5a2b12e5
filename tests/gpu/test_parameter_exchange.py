"""Packed tensors that were read from one executor and written into another are what packing the checkpoint gives: every
logit is the same, bit by bit, with no file in reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.gpu.backend import SLICE, Backend
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.parameters import ResidentParameters
from blockwright.policies.cluster.parameter_fetch import ParameterFetch
from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPiece
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.gpu.rig import Rig, load, placing

MakeCheckpoint = Callable[..., Path]


def copy(source: ResidentParameters, target: ResidentParameters, pieces: list[tuple[TensorPiece, int]]) -> list[bytes]:
    """Over a link, as it were: tensors that the source has not got."""
    body, missing = bytearray(sum(piece.last - piece.first for piece, _ in pieces)), list[bytes]()
    assert all(step is None for step in source.read([piece for piece, _ in pieces], body, missing))
    list(target.write([(piece, offset) for piece, offset in pieces if not missing], bytes(body)))
    return missing


class Fetching(Rig):
    """Loads from another rig: its files are not there."""

    def __init__(self, backend: Backend, path: Path, source: Rig) -> None:
        self.source = source
        super().__init__(backend, path)

    def _load(self, backend: Backend) -> None:
        lost = {spec.name: _without_files(spec) for spec in self.specs}
        self.placing = placing(backend, self.specs, start=64 * 5)  # elsewhere than at the source
        self.commit("parameters", self.placing.end)
        wanted, seen = [], set[bytes]()
        for spec in self.specs:
            parts = [part for part in backend.parts(spec) if part.id not in seen]
            seen.update(part.id for part in parts)
            wanted.append((spec.name, [PackedTensor(part.id, part.nbytes) for part in parts]))
        fetch, number = ParameterFetch(wanted, 10_000), 0
        while pieces := fetch.ask(number):
            places = [(piece, self.placing.offsets[piece.id]) for piece in pieces]
            assert not copy(self.source.executor.parameters, self.executor.parameters, places)
            fetch.arrived(number, [])
            fetch.written(number)
            number += 1
        assert number > 10
        for spec in self.specs:
            load(self.executor, lost[spec.name], self.placing)


def _without_files(spec: ComponentSpec) -> ComponentSpec:
    return replace(spec, tensors={role: replace(ref, path="/nowhere") for role, ref in spec.tensors.items()})


def logits(rig: Rig) -> list[object]:
    prompt = list(prompt_of(21, seed=5))
    params = SamplingParams(temperature=0.0, logprobs=rig.checkpoint.config.vocabulary)
    result = rig.run([(0, 0, 21)], [0], rig.admit(0, prompt, params, 64))
    return [result.tokens, [entry and sorted(entry.top) for entry in result.logprobs]]


@pytest.mark.parametrize("kind", ["llama-tied", "gemma2"])
def test_the_same_logits_in_float32(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend], kind: str) -> None:
    source = Rig(make_backend(), checkpoint(kind))
    assert logits(Fetching(make_backend(), checkpoint(kind), source)) == logits(source)


def test_the_same_logits_in_bfloat16(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend]) -> None:
    source = Rig(make_backend("bfloat16"), checkpoint("llama"))
    assert logits(Fetching(make_backend("bfloat16"), checkpoint("llama"), source)) == logits(source)


def test_what_did_not_come_whole_is_read(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend]) -> None:
    """Half a tensor is not packed; who reads it anew is not written over by the other half; what is gone is not there."""
    path = checkpoint("llama", hidden_size=512, intermediate_size=1024)
    source, target = Rig(make_backend(), path), Rig(make_backend(), path)
    spec, backend = target.specs[2], target.executor.backend
    part = max(backend.parts(spec), key=lambda part: part.nbytes)
    assert part.nbytes > 2 * SLICE
    from_, to = source.executor.parameters, target.executor.parameters
    offset, half = target.placing.offsets[part.id], part.nbytes // 128 * 64
    first, second = TensorPiece(part.id, part.nbytes, 0, half), TensorPiece(part.id, part.nbytes, half, part.nbytes)
    for run in target.runs:
        target.executor.drop(run)
    target.executor.unload(spec.name, [p.id for p in backend.parts(spec)])
    assert copy(to, from_, [(first, 0)]) == [part.id], "it is not here any more"
    copy(from_, to, [(second, offset)])
    copy(from_, to, [(first, offset)])
    with pytest.raises(CheckpointError):
        load(target.executor, _without_files(spec), target.placing)
    steps = target.executor.load(spec, [target.placing.offsets[p.id] for p in backend.parts(spec)])
    for _ in steps:
        copy(from_, to, [(second, offset)])  # too late: it is being read
    target._compose(())
    assert logits(target) == logits(source)

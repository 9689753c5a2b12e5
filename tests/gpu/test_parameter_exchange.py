"""Packed tensors that were read from one executor and written into another are what packing the checkpoint gives: every
logit is the same, bit by bit, with no file in reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blockwright.gpu.backend import SLICE, Backend
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.parameters import Checksum, ResidentParameters
from blockwright.policies.cluster.parameter_fetch import ParameterFetch
from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPiece
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.gpu.rig import Rig, load, placing

MakeCheckpoint = Callable[..., Path]


def copy(
    source: ResidentParameters, target: ResidentParameters, pieces: list[tuple[TensorPiece, int]], flip: int = -1
) -> list[bytes]:
    """Over a link, as it were: tensors that the source lacks, or that are damaged. flip: the byte with a flipped bit."""
    body, missing = bytearray(sum(piece.last - piece.first for piece, _ in pieces)), list[bytes]()
    checksums, damaged = dict[bytes, bytes](), list[bytes]()
    assert all(step is None for step in source.read([piece for piece, _ in pieces], body, missing, checksums))
    body[flip] ^= 16 if flip >= 0 else 0
    list(target.write([(piece, offset) for piece, offset in pieces if not missing], bytes(body), checksums, damaged))
    return missing + damaged


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


def empty(rig: Rig, spec: ComponentSpec) -> None:
    """Take a component out of a rig."""
    for run in rig.runs:
        rig.executor.drop(run)
    rig.executor.unload(spec.name, [part.id for part in rig.executor.backend.parts(spec)])


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
    empty(target, spec)
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


@claim("A flipped bit in a packed tensor from another worker is found, and the tensor is not used", of="faults")
def test_a_flipped_bit_is_found(checkpoint: MakeCheckpoint, make_backend: Callable[..., Backend]) -> None:
    path = checkpoint("llama")
    source, target = Rig(make_backend(), path), Rig(make_backend(), path)
    spec, backend = target.specs[2], target.executor.backend
    part = max(backend.parts(spec), key=lambda part: part.nbytes)
    from_, to = source.executor.parameters, target.executor.parameters
    empty(target, spec)
    offset, third = target.placing.offsets[part.id], part.nbytes // 3
    cuts = [0, third, 2 * third, part.nbytes]
    pieces = [TensorPiece(part.id, part.nbytes, first, last) for first, last in pairwise(cuts)]
    for bad in range(3):
        found = [copy(from_, to, [(piece, offset)], 5 if at == bad else -1) for at, piece in enumerate(pieces)]
        assert found == [[], [], [part.id]]
        assert part.role in to.lacking(spec)
    assert [copy(from_, to, [(piece, offset)]) for piece in pieces] == [[], [], []]
    assert part.role not in to.lacking(spec)
    empty(source, spec)
    assert [copy(to, from_, [(piece, offset)], 7 if at == 2 else -1) for at, piece in enumerate(pieces)] == [
        [],
        [],
        [part.id],
    ]
    assert [copy(to, from_, [(piece, offset)]) for piece in pieces] == [[], [], []], "it goes on with its checksum"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 8191, 8192, 8200, 100_003])
def test_a_checksum_depends_on_the_bytes_and_not_on_the_pieces(size: int) -> None:
    rng = np.random.default_rng(size)
    content = rng.integers(0, 256, size, np.uint8)
    whole = checksum_of(content, [0, size])
    for _ in range(20):
        cuts = sorted({0, size, *map(int, rng.integers(0, size + 1, 5))})
        assert checksum_of(content, cuts) == whole
    for at in map(int, rng.integers(0, size, 20 if size else 0)):
        changed = content.copy()
        changed[at] ^= np.uint8(1 << int(rng.integers(8)))
        assert checksum_of(changed, [0, size]) != whole


def checksum_of(content: np.ndarray, cuts: list[int]) -> bytes:
    made = Checksum()
    for first, last in pairwise(cuts):
        made.add(first, content[first:last])
    return made.digest()

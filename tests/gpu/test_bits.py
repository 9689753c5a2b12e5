"""The law of bits, in both types and on every instruction set: model, numerics and the tokens up to it make a position's
logits, and nothing else does.

Small random models of every family, with odd head sizes. A sequence is computed at once and alone by one thread; then again
in random chunks beside other rows, with other threads, pages, runs and another end of its prompt: the same bits.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accuracy_models import FAMILIES, RandomModel, drawn, write
from accuracy_ours import Loaded, instruction_sets

from blockwright.gpu.backend import HostBackend
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.gpu.rig import Rig
from blockwright.tests.parts import some

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # in a process of its own (``cuda/test_interpreted.py``)
HEAD_DIMS = (6, 10, 80, 96, 256)
HALF_TURNED = (16, 80, 96, 256)  # where half of a head is rotated
LENGTHS = (257, 514, 1027)  # beyond the borders of pieces
CHUNKS = (1, 2, 3, 7, 16, 33, 64, 130, 255, 256, 257, 400, 513)
ROWS = 3
Folders = Callable[[int], Path]


def small(number: int) -> RandomModel:
    """Two layers; where the head size is free, one that kernels have no path of its own for."""
    model = drawn(number)
    config = {**model.config, "num_hidden_layers": 2}
    if "head_dim" in config:
        sizes = HALF_TURNED if model.name.startswith("glm") else HEAD_DIMS
        config["head_dim"] = sizes[number % len(sizes)]
    return replace(model, config=config)


# Families in turn with both spreads; further numbers of those whose attention differs from the others'.
NUMBERS = [*range(len(FAMILIES), 2 * len(FAMILIES)), *(n for n in range(26, 45) if drawn(n).name in ("mistral", "gemma2"))]
FOLLOWED = some(NUMBERS[: len(FAMILIES)], *NUMBERS[: len(FAMILIES) : 2])
# The best instruction set computes every model in any run, the others with ``make equality``.
CASES = [
    pytest.param(
        number,
        name,
        dtype,
        marks=[pytest.mark.equality] if place else [],
        id=f"{drawn(number).name}-{number}-{name}-{dtype}",
    )
    for dtype in ("float32", "bfloat16")
    for place, name in enumerate(instruction_sets(dtype))
    for number in NUMBERS
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[int, Path] = {}

    def get(number: int) -> Path:
        if number not in made:
            made[number] = write(small(number), tmp_path_factory.mktemp("bits"))
        return made[number]

    return get


def at_once(folder: Path, backend: HostBackend, tokens: list[int]) -> torch.Tensor:
    loaded = Loaded(folder, backend, max_length=len(tokens), max_tokens=len(tokens))
    loaded.admit(0, tokens, len(tokens))
    return loaded.logits([(0, 0, len(tokens))])


def disturbed(loaded: Loaded, tokens: list[int], draw: random.Random) -> torch.Tensor:
    """The same logits from steps of random length, in which other rows come and go."""
    rows = draw.sample(range(ROWS), ROWS)
    known = {rows[0]: tokens} | {
        row: [draw.randrange(3, 128) for _ in range(draw.randint(1, len(tokens)))] for row in rows[1:]
    }
    for row, content in known.items():
        loaded.admit(row, content, draw.randint(1, len(content)))
    done, found = dict.fromkeys(rows, 0), []
    while done[rows[0]] < len(tokens):
        taking = [row for row in rows if done[row] < len(known[row]) and (row == rows[0] or draw.random() < 0.6)]
        draw.shuffle(taking)
        batch = [(row, done[row], min(draw.choice(CHUNKS), len(known[row]) - done[row])) for row in taking]
        logits, first = loaded.logits(batch), 0
        for row, start, count in batch:
            if row == rows[0]:
                found.append(logits[first : first + count])
            done[row] = start + count
            first += count
    return torch.cat(found)


@claim(
    "The same request gives the same bits in any batch, with any chunk and page size and any number of threads",
    of="numerics",
    headline=True,
)
@pytest.mark.parametrize(("number", "instruction_set", "dtype"), CASES)
def test_nothing_else_changes_a_bit(folders: Folders, number: int, instruction_set: str, dtype: str) -> None:
    draw = random.Random(f"{number} {instruction_set} {dtype}")
    folder, length = folders(number), draw.choice(LENGTHS)
    tokens = [draw.randrange(3, 128) for _ in range(length)]
    whole = at_once(folder, NativeBackend(dtype, 1, instruction_set), tokens)
    components = len(Checkpoint.open(folder))
    loaded = Loaded(
        folder,
        NativeBackend(dtype, draw.choice((1, 2, 3)), instruction_set),
        max_length=length,
        rows=ROWS,
        page_size=draw.choice((1, 5, 8, 16, 48)),
        max_tokens=ROWS * max(CHUNKS),
        cuts=sorted(draw.sample(range(1, components - 1), draw.randint(0, components - 2))),
    )
    assert torch.equal(disturbed(loaded, tokens, draw), whole)


def through_a_device(rig: Rig, tokens: list[int], given: int, draw: random.Random | None = None) -> list[list[float]]:
    """Log-probabilities after ``tokens[:given]`` and after each further one, which decodes; other rows come and go.

    Without ``draw`` the sequence is alone, and its prompt computed at once.
    """
    vocabulary = rig.checkpoint.config.vocabulary
    params = SamplingParams(temperature=0.0, logprobs=vocabulary)
    edits: list[Edit] = rig.admit(0, tokens[:given], params, len(tokens))
    others = dict[int, int]()
    if draw is not None:
        for row in (1, 2):
            known = [draw.randrange(3, 128) for _ in range(draw.randint(2, 30))]
            others[row] = 0
            edits += rig.admit(row, known, SamplingParams(seed=row), len(tokens))
    found, start = list[list[float]](), 0
    while start < len(tokens):
        known_here = max(given, start + 1)
        step = known_here - start if draw is None else min(draw.choice((1, 3, 7, 30)), known_here - start)
        batch = [(0, start, step)] + [(row, at, 1) for row, at in others.items() if draw is not None and draw.random() < 0.6]
        for row, *_ in batch[1:]:
            others[row] += 1
        if draw is not None:
            draw.shuffle(batch)
        (mine,) = [n for n, (row, *_) in enumerate(batch) if not row]
        result = rig.run(batch, [mine] if start + step == known_here else [], edits)
        start += step
        edits = [WriteTokens(0, start, tokens[start : start + 1])] if start >= given else []
        found += [[value for _, value in sorted(one.top)] for one in result.logprobs if one is not None]
    return found


@claim("The torch reference, too, gives the same request the same bits", of="numerics")
@pytest.mark.parametrize("dtype", some(("float32", "bfloat16"), "bfloat16"))
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{drawn(number).name}-{number}")
@pytest.mark.skipif(INTERPRETED, reason="not of a card")
def test_nothing_else_changes_a_bit_of_the_reference(folders: Folders, number: int, dtype: str) -> None:
    """With as many threads, on the same processor."""
    draw = random.Random(number)
    length, threads = draw.randint(66, 90), 2 if number % 4 == 0 else 1
    tokens = [draw.randrange(3, 128) for _ in range(length)]
    whole = at_once(folders(number), TorchBackend(dtype, threads), tokens)
    loaded = Loaded(
        folders(number),
        TorchBackend(dtype, threads),
        max_length=length,
        rows=ROWS,
        page_size=draw.choice((1, 5, 8, 16, 48)),
        max_tokens=ROWS * max(CHUNKS),
    )
    assert torch.equal(disturbed(loaded, tokens, draw), whole)


@claim("A card's host code and interpreted kernels give a row its bits whatever is computed beside it", of="numerics")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("number", some(NUMBERS, *NUMBERS[:2]), ids=lambda number: drawn(number).name)
@pytest.mark.parametrize("name", ["cuda-interpreted"] if INTERPRETED else ["native", "cuda-mirror"])
def test_no_device_changes_a_bit(folders: Folders, name: str, number: int, dtype: str) -> None:
    """In chunks, beside other rows, in recorded graphs, with other pages and cuts, prefilled or decoded."""
    draw = random.Random(f"{number} {dtype}")
    length, decoded = (12, 5) if INTERPRETED else (60, 12)
    folder, tokens = folders(number), [draw.randrange(3, 128) for _ in range(length)]
    whole = through_a_device(Rig(open_backend(name, dtype, 1), folder), tokens, length - decoded)
    components = len(Checkpoint.open(folder))
    cuts = sorted(draw.sample(range(1, components - 1), draw.randint(0, components - 2)))
    rig = Rig(open_backend(name, dtype, 1), folder, draw.choice((1, 5, 8, 16, 48)), cuts)
    found = through_a_device(rig, tokens, draw.randint(length // 2, length - 3), draw)
    shared = min(len(found), len(whole))
    assert found[-shared:] == whole[-shared:]


@pytest.mark.parametrize("dtype", some(("float32", "bfloat16"), "bfloat16"))
@pytest.mark.parametrize("number", FOLLOWED, ids=lambda number: drawn(number).name)
def test_what_follows_changes_no_bit(folders: Folders, number: int, dtype: str) -> None:
    """Computed at once with and without what comes behind: a prefix has its bits whatever it is a prefix of."""
    draw = random.Random(f"{number} {dtype}")
    tokens = [draw.randrange(3, 128) for _ in range(530)]
    whole = at_once(folders(number), NativeBackend(dtype), tokens)
    for length in (1, 17, 191, 257, 513):
        other = tokens[:length] + [draw.randrange(3, 128) for _ in range(draw.randint(0, 100))]
        assert torch.equal(at_once(folders(number), NativeBackend(dtype), other)[:length], whole[:length])

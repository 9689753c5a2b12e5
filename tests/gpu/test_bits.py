"""The law of bits, in both types and on every instruction set: model, numerics and the tokens up to it make a position's
logits, and nothing else does.

Small random models of every family, with odd head sizes. A sequence is computed at once and alone by one thread; then again
in random chunks beside other rows, with other threads, pages, runs and another end of its prompt: the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accuracy_models import FAMILIES, RandomModel, drawn, write
from accuracy_ours import Loaded, instruction_sets

from blockwright.gpu.backend import Backend
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.parts import some

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


def at_once(folder: Path, backend: Backend, tokens: list[int]) -> torch.Tensor:
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("number", some(NUMBERS, *NUMBERS[:2]), ids=lambda number: drawn(number).name)
def test_host_code_of_cuda_changes_no_bit(folders: Folders, number: int, dtype: str) -> None:
    """Operations by torch compute each row alone, so that a bit could differ by tables, tiles, slots and copies."""
    draw = random.Random(f"{number} {dtype}")
    folder, length = folders(number), 70
    tokens = [draw.randrange(3, 128) for _ in range(length)]
    whole = at_once(folder, open_mirror(dtype), tokens)
    components = len(Checkpoint.open(folder))
    loaded = Loaded(
        folder,
        open_mirror(dtype, seed=number),
        max_length=length,
        rows=ROWS,
        page_size=draw.choice((1, 5, 8, 16, 48)),
        max_tokens=ROWS * length,
        cuts=sorted(draw.sample(range(1, components - 1), draw.randint(0, components - 2))),
    )
    assert torch.equal(disturbed(loaded, tokens, draw), whole)


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

"""Tokens from the HTTP API equal those of transformers on the same folder, whatever the cluster does meanwhile.

Each cell serves one random checkpoint (``initializer_range`` 0.2) and asks for 64 tokens of prompts of all interesting
lengths: alone and cold, again and warm, and many at once that join and leave. A comparison ends where the reference's best
two logits (or perturbed scores) are within 1e-4; before, every answer has at least 30 different tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.tests.claims import claim
from blockwright.tests.equality.cells import AXES, FURTHER, OTHERS, Cell, brief, cells_of, every, one_each, pairs, pairwise
from blockwright.tests.equality.reference import confirm_sampled
from blockwright.tests.equality.served import Served, serve, tight
from blockwright.tests.gpu.reference import confirm, prompt_of
from blockwright.tests.parts import some

Checkpoints = Callable[..., Path]
NEW = 64
LIMIT = 320  # tokens of the longest sequence
SAMPLING = {"temperature": 1.1, "top_p": 0.95, "top_k": 40, "seed": 1234, "repetition_penalty": 1.1, "presence_penalty": 0.3}
DISTINCT = 30  # different tokens of every answer that is compared
TRIES = 20
SEEDS: dict[tuple[Path, int, str], int] = {}  # of prompts that are known to have such an answer
COVER = [*pairwise(), *one_each()]


def lengths(cell: Cell) -> list[int]:
    page, chunk = cell.sizes
    return [1, 2, page - 1, page, page + 1, min(3 * chunk + 1, 150), LIMIT - NEW]


async def ask(server: Served, path: Path, prompt: tuple[int, ...], cell: Cell) -> tuple[int, ...]:
    """The tokens of one answer that could be compared: up to the first choice that is too close to call."""
    fields = {} if cell.sampling == "greedy" else SAMPLING
    choice = await server.complete(prompt, NEW, **fields)
    tokens = tuple(choice["token_ids"])
    assert len(tokens) == NEW
    if cell.sampling == "greedy":
        return tokens[: confirm(path, prompt, tokens)]
    return tokens[: confirm_sampled(path, prompt, tokens, tuple(sorted(SAMPLING.items())))]


async def telling(server: Served, path: Path, length: int, cell: Cell) -> tuple[int, ...]:
    """A prompt of this length whose answer has many different tokens: a few again and again would hide errors."""
    known = (path, length, cell.sampling)
    for seed in range(SEEDS.get(known, length), length + TRIES):
        prompt = prompt_of(length, seed)
        if len(set(await ask(server, path, prompt, cell))) >= DISTINCT:
            SEEDS[known] = seed
            return prompt
    raise AssertionError(f"none of {TRIES} prompts of {length} has an answer with {DISTINCT} different tokens")


async def compare(path: Path, cell: Cell, native: int, reference: int) -> None:
    """Serve a cell. ``native``, ``reference``: requests that run at once, by back end."""
    page, chunk = cell.sizes
    settings: dict[str, object] = {"page_size": page, "chunk_size": chunk, "backend": cell.backend, "max_model_len": LIMIT}
    settings |= {"workers": 1 if cell.topology == "one" else 2, "pipeline": 2 if cell.topology == "pipeline" else 1}
    if cell.memory == "tight":
        settings["memory"] = tight(path, page, LIMIT, cell.backend)
    async with serve({"m": path}, **settings) as server:
        prompts = [await telling(server, path, length, cell) for length in lengths(cell)]
        await ask(server, path, prompts[-1], cell)  # alone and warm; the others are warm below, if memory is not tight
        rounds = [prompts[i % len(prompts)] for i in range(native if cell.backend == "native" else reference)]
        answers = await asyncio.gather(*(ask(server, path, prompt, cell) for prompt in rounds))
        assert sum(map(len, answers)) > 0.8 * NEW * len(rounds)
        if cell.memory == "tight" and cell.topology != "pipeline":
            assert await server.counters("preemptions") > 0
            assert await server.counters("evicted_pages") > 0
        elif cell.memory == "ample":
            assert await server.counters("cached_tokens") > 0


@claim("Greedy float32 answers over HTTP are token for token those of transformers", of="numerics", headline=True)
@pytest.mark.parametrize("cell", some(COVER, *brief(COVER)), ids=str)
async def test_cover(checkpoint: Checkpoints, cell: Cell) -> None:
    await compare(checkpoint(cell.architecture), cell, native=7, reference=7)


@claim("Greedy float32 answers over HTTP are token for token those of transformers", of="numerics", headline=True)
@pytest.mark.equality
@pytest.mark.parametrize("cell", every(), ids=str)
async def test_every_combination(checkpoint: Checkpoints, cell: Cell) -> None:
    await compare(checkpoint(cell.architecture), cell, native=32, reference=16)


def test_the_cover_holds_every_pair() -> None:
    held = set().union(*(pairs(cell) for cell in pairwise()))
    assert held == set().union(*(pairs(cell) for cell in cells_of(AXES["architecture"])))
    assert [cell.architecture for cell in one_each()] == list(FURTHER)


def test_any_run_holds_every_pair_but_of_architectures() -> None:
    held, wanted = (set().union(*(pairs(cell, OTHERS) for cell in cells)) for cells in (brief(COVER), every()))
    assert held == wanted
    assert len(brief(COVER)) < len(COVER) / 2


def test_settings_of_all_cells_are_legal() -> None:
    for page, chunk in {cell.sizes for cell in every()}:
        Settings(applications={"m": "x"}, page_size=page, chunk_size=chunk)

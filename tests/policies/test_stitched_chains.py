"""Chains with stitches and KV of two layouts: a stitch is a run of its own, a span has one layout, memory counts both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.memory.worker_memory import WorkerMemory
from blockwright.policies.model.chain import Block, Chain, Component, Kind, KvLayout
from blockwright.policies.model.local_paths import LocalPaths
from blockwright.policies.model.runs import LocalRoute, Span

from .fake_device import CHUNK
from .sweep_world import World, chain, pipeline, replica
from .test_pressure import assert_all, fill

NARROW = chain("narrow", 4, own_from=0)
WIDE = chain("wide", 4, own_from=0, heads=2)


def joint(name: str) -> Component:
    return Component(name.encode().ljust(16, b"."), Kind.STITCH, 50, 8, 8)


def stitched() -> Chain:
    """The narrow chain, whose second and third layer are the wide one's, with a stitch at each end."""
    own, other = NARROW.components, WIDE.components
    parts = (*own[:3], joint("enter"), *other[3:7], joint("leave"), *own[7:])
    return replace(NARROW, application="narrow~1", blocks=(Block(parts),), variant_of="narrow")


def cut(*chains: Chain) -> LocalRoute:
    routes = [replica("w0", one) for one in chains]
    return LocalPaths("w0", "numerics").cut(chains, routes)[routes[-1].id]


@pytest.mark.parametrize("others", [(), (NARROW, WIDE)])
def test_a_stitch_is_a_run_of_its_own_and_a_span_has_one_layout(others: tuple[Chain, ...]) -> None:
    local = cut(*others, stitched())
    alone = [run for run in local.runs if stitched().components[run.depth].kind is Kind.STITCH]
    assert [(run.depth, len(run.components), run.nbytes, run.head) for run in alone] == [
        (3, 1, 50, False),
        (8, 1, 50, False),
    ]
    assert [run.kv_layer for run in alone] == [1, 3], "the layers before it"
    assert sum(len(run.components) for run in local.runs) == len(stitched().components)
    assert [(span.layer, span.layers, span.arena.split("-")[1]) for span in local.spans] == [
        (0, 1, "1x8"), (1, 2, "2x8"), (3, 1, "1x8"),
    ]  # fmt: skip


def test_memory_counts_the_pages_of_both_layouts() -> None:
    """A page takes 2 slots of one arena and 3 of the other; 4 and 2 of them fit a chunk."""
    unit = 16 * 1024
    layouts = [KvLayout(1, 8, "float32", 4), KvLayout(2, 8, "float32", 2 * unit // 128)]
    made = WorkerMemory(10 * 4 * unit, 4 * unit, unit)
    for layout in layouts:
        made.add_layout(layout)
    one, other = (
        Span.of(0, layout.key, [(b"c",)] * layers, [bytes([layers, n]) for n in range(layers)])
        for layout, layers in zip(layouts, (2, 3), strict=True)
    )
    need = [made.chunks_for([one, other], "", pages) for pages in range(9)]
    assert need == [-(-2 * n // 4) + -(-3 * n // 2) for n in range(9)]
    fitting = made.pages_of([one, other], "")
    assert need[fitting] <= 10 < need[fitting + 1]
    assert [made.pages_of([span], "") for span in (one, other)] == [20, 6]
    taken = [made.allocate_pages([one, other], "") for _ in range(fitting + 1)]
    assert [handles is not None for handles in taken] == [True] * fitting + [False]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_beside_the_chains_that_it_is_made_of(seed: int, workers: int) -> None:
    """Little memory, so that sequences are preempted, and pages of equal beginnings are shared."""
    names = [f"w{n}" for n in range(workers)]
    chains = [NARROW, WIDE, stitched()]
    routes = [replica("w0", one) if workers == 1 else pipeline(names, one) for one in chains]
    world = World(names, chains, routes, budget=(26 + seed) * CHUNK, chunk_size=8, max_rows=8, sweep_tokens=64)
    expected = fill(world, seed, 14, [one.id for one in routes], new=8)
    world.run(seed)
    assert_all(world, expected)

"""The key-value store: hashing and refilling on nodes of one process; the whole of it with real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import kv_store
import pytest
from kv_store import Ring, Shard, Store

from blockwright.runtime import Child, NoSuchActor, Supervisor
from blockwright.tests.runtime.lives import Nodes, turns
from blockwright.tests.waiting import PATIENCE

SHARDS = ["shard-0", "shard-1", "shard-2"]
KEYS = {f"k{i}": f"v{i}".encode() for i in range(300)}


def test_a_key_has_two_owners_and_every_shard_its_share():
    ring = Ring(SHARDS)
    owners = [ring.owners(key) for key in KEYS]
    assert all(len(set(pair)) == 2 for pair in owners)
    assert all(sum(pair[0] == shard for pair in owners) > len(KEYS) / 6 for shard in SHARDS)
    assert Ring(["only"]).owners("x") == ["only"]


def test_another_shard_takes_its_share_and_moves_nothing_else():
    before, after = Ring(SHARDS), Ring([*SHARDS, "shard-3"])
    moved = [key for key in KEYS if before.owners(key)[0] != after.owners(key)[0]]
    assert {after.owners(key)[0] for key in moved} == {"shard-3"}
    assert len(moved) < len(KEYS) / 2


@pytest.fixture
async def world():
    """The head and a node for each shard, in this process under a manual clock."""
    nodes = Nodes()
    head = await nodes.add("head")
    for shard in SHARDS:
        (await nodes.add(shard)).peering.follower.head = head.id
    children = [Child(name=shard, actor=Shard, args=(SHARDS,), on=shard) for shard in SHARDS]
    await head.spawn(Supervisor(children), name="shards")
    yield nodes, head, Store(head, SHARDS)
    await nodes.stop()


async def test_a_shard_that_dies_is_refilled_and_misses_nothing(world):
    nodes, head, store = world
    assert {await store.put(key, value) for key, value in KEYS.items()} == {2}
    await head.kill_actor(head.ref("shard-1/shard-1"))
    key = next(key for key in KEYS if store.owners(key) == ["shard-0", "shard-1"])
    assert await store.put(key, b"new") == 1  # while its copy is down
    assert await store.get(next(key for key in KEYS if store.owners(key)[0] == "shard-1")) in KEYS.values()
    writing = asyncio.ensure_future(store.put("late", b"x"))
    await nodes.advance(1.0)
    await writing
    shard = await head.lookup("shard-1", Shard)
    held, refilled = await shard.counts()
    assert shard.life == 2
    assert held >= refilled == sum("shard-1" in store.owners(key) for key in KEYS)
    await head.kill_actor(head.ref("shard-0/shard-0"))
    await turns()
    assert await store.get(key) == b"new"
    wanted = {**KEYS, key: b"new", "late": b"x"}
    await nodes.advance(1.0)
    assert {key: await store.get(key) for key in wanted} == wanted
    assert await store.get("never") is None


async def test_keys_whose_shards_are_both_down_are_an_error(world):
    nodes, _head, store = world
    await store.put("k", b"v")
    for shard in store.owners("k"):
        nodes.cut(next(node for node in nodes.all if node.name == shard))
    await turns(60)
    with pytest.raises(NoSuchActor, match="all shards of 'k' are down"):
        await store.get("k")


def test_the_example_with_real_processes():
    script = Path(kv_store.__file__)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2000 of 2000 keys are there" in done.stdout
    assert "shard-1/shard-1#2.1 answers after" in done.stdout

"""The example runs. Its types are for ``make types``, which fails where a mistake is not found."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typed_references

from blockwright.runtime import Node


@pytest.mark.system
def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, typed_references.__file__], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5\n[1, 2, 3]\n", "")


async def test_a_reference_stands_for_its_actor_where_one_is_asked_for() -> None:
    node = Node("alone", listen=False)
    await node.start()
    counter = await node.spawn(typed_references.Counter(), name="counter")
    assert counter.ref is counter
    assert str(counter.ref.address).startswith("alone/counter#")
    await node.register("it", counter)
    found = await node.lookup("it", typed_references.Counter)
    assert await found.add(2) == 2
    downs: list[str] = []
    node.monitor(found, lambda down: downs.append(down.cause))
    await node.kill_actor(counter)
    assert downs == ["killed"]
    await node.stop()

"""Sources of parameters: the origin gives each component once, and rounds grow with the logarithm of the workers."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2
from random import Random

import pytest

from blockwright.policies.cluster.parameter_sources import AT_ONCE, ParameterSources
from blockwright.tests.claims import claim

MODEL = [b"a", b"b", b"c"]


def grants(sources: ParameterSources, holders: dict[str, list[bytes]]) -> dict[str, tuple[str, ...]]:
    found = {}
    while (one := sources.next(holders)) is not None:
        found[one[0]] = one[1].sources
    return found


@claim("The origin gives each component once, and a distribution takes at most log2 N rounds", of="serving")
@pytest.mark.parametrize("count", [1, 2, 4, 7, 64, 1000])
def test_a_cold_cluster(count: int) -> None:
    sources, holders = ParameterSources(), dict[str, list[bytes]]()
    for n in range(count):
        sources.ask(f"w{n}", MODEL)
    origin, rounds = Counter[bytes](), 0
    while sources.waiting:
        given = dict[str, tuple[str, ...]]()
        while (one := sources.next(holders)) is not None:
            given[one[0]] = one[1].sources
            origin.update(one[1].rest)
        assert given, "somebody can always go on"
        load = Counter(source for named in given.values() for source in named)
        assert max(load.values(), default=0) <= AT_ONCE
        for worker in given:
            sources.end(worker)
            holders[worker] = MODEL
        rounds += 1
    assert origin == Counter(MODEL)
    assert rounds <= ceil(log2(count)) + 1, "the first round is the origin's"


def test_who_has_it_gives_to_two_at_a_time_and_the_third_waits() -> None:
    sources, holders = ParameterSources(), {"w0": MODEL}
    for name in ("w1", "w2", "w3"):
        sources.ask(name, MODEL)
    assert grants(sources, holders) == {"w1": ("w0",), "w2": ("w0",)}
    assert grants(sources, holders) == {}
    sources.end("w1")
    assert grants(sources, {**holders, "w1": MODEL}) == {"w3": ("w1",)}, "the one that gives to fewer"


def test_several_sources_are_named_that_have_parts_and_the_rest_is_the_origins() -> None:
    sources = ParameterSources()
    sources.ask("w9", [b"a", b"b", b"c", b"d"])
    one = sources.next({"w0": [b"b"], "w1": [b"a", b"b"], "w2": [b"c", b"x"], "w9": [b"d"]})
    assert one is not None
    assert (one[0], one[1].sources, one[1].rest) == ("w9", ("w1", "w2"), {b"d"})


def test_what_is_on_its_way_to_another_is_waited_for() -> None:
    sources = ParameterSources()
    sources.ask("w1", [b"a", b"b"])
    assert grants(sources, {}) == {"w1": ()}
    sources.ask("w2", [b"b", b"c"])
    sources.ask("w3", [b"c"])
    assert grants(sources, {}) == {"w3": ()}, "nobody has it, and it is on its way to nobody"
    sources.end("w3")
    assert grants(sources, {"w3": [b"c"]}) == {}
    sources.end("w1")
    assert grants(sources, {"w3": [b"c"]}) == {"w2": ("w3",)}, "w1 died: the rest is the origin's after all"


def test_a_worker_that_asks_anew_gives_up_what_it_was_named() -> None:
    sources, holders = ParameterSources(), {"w0": MODEL}
    for name in ("w1", "w2"):
        sources.ask(name, MODEL)
    grants(sources, holders)
    sources.ask("w1", [b"a"])
    assert grants(sources, holders) == {"w1": ("w0",)}
    sources.end("nobody")


def test_as_many_sources_are_named_as_it_takes() -> None:
    sources, parts = ParameterSources(), [bytes([n]) for n in range(9)]
    sources.ask("w", parts)
    holders = {f"h{n}": [part] for n, part in enumerate(parts)}
    assert grants(sources, holders) == {"w": tuple(holders)}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_dies_and_asks_again_all_are_served_and_none_twice_at_once(seed: int) -> None:
    random, sources = Random(seed), ParameterSources()
    holders = dict[str, list[bytes]]()
    parts = [bytes([n]) for n in range(6)]
    wants = {f"w{n}": random.sample(parts, random.randint(1, 6)) for n in range(12)}
    for name, want in wants.items():
        sources.ask(name, want)
    running, coming = dict[str, frozenset[bytes]](), set[bytes]()
    for _ in range(2000):
        while (one := sources.next(holders)) is not None:
            assert not one[1].rest & coming, "the origin gives it to another one already"
            running[one[0]] = one[1].rest
            coming |= one[1].rest
        if not running:
            break
        name = random.choice(sorted(running))
        coming -= running.pop(name)
        sources.end(name)
        if random.random() < 0.3:
            dead = random.choice(sorted({*holders, name}))
            holders.pop(dead, None)
            if dead not in running and dead not in sources.waiting:
                sources.ask(dead, wants[dead])
        else:
            holders[name] = wants[name]
    assert not sources.waiting
    assert not sources.given

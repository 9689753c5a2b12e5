"""Where applications go: everywhere while memory allows, else where they fit."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from blockwright.policies.cluster.assignment import (
    WorkerCapacity,
    relative_speeds,
    routes_of_all,
    routes_on_new_worker,
    routes_where_it_fits,
    uneven_borders,
)
from blockwright.policies.model.chain import Component
from blockwright.policies.model.partition import place
from blockwright.tests.claims import claim
from blockwright.tests.policies.cluster.test_placement import LAYOUT, chain

PAGE = 2 * LAYOUT.raw_bytes  # of both attentions


@dataclass(frozen=True)
class Model:
    components: tuple[Component, ...]
    max_length: int = 16
    span: int = 1

    def tensors(self, first: int = 0, last: int | None = None) -> dict[bytes, int]:
        return {c.id: c.nbytes for c in self.components[first:last]}


def model(foundation: str, own: str = "", own_from: int = 1 << 30, size: int = 1000, **more: int) -> Model:
    """Six components of 1,000 bytes, two of them with KV."""
    return Model(tuple(chain(foundation, size, 2, own, own_from)), **more)


def rooms(**free: int | None) -> dict[str, WorkerCapacity]:
    return {worker: WorkerCapacity(nbytes, {}) for worker, nbytes in free.items()}


def ids(routes: list) -> list[str]:
    return sorted(route.id for route in routes)


def test_what_fits_everywhere_goes_everywhere() -> None:
    new = {"a": model("f"), "b": model("f", "b", 4), "c": model("f", span=2)}
    workers = rooms(w0=8000 + PAGE, w1=8000 + PAGE)
    everywhere = place({n: m.components for n, m in new.items()}, list(workers), {"c": 2}, version=0)
    assert routes_of_all(new, workers) == everywhere
    assert routes_of_all(new, rooms(w0=0, w1=None)) == everywhere, "nobody knows that it does not fit"


def test_what_does_not_is_placed_by_memory_and_locality() -> None:
    new = {"a": model("f"), "x": model("g"), "b": model("f", "b", 5), "y": model("g", "y", 5)}
    routes = routes_of_all(new, rooms(w0=7000 + PAGE, w1=7000 + PAGE))
    homes = {route.application: route.home for route in routes}
    assert len(routes) == 4
    assert homes["a"] == homes["b"] != homes["x"] == homes["y"]


def test_room_for_a_whole_sequence_is_kept_unless_that_leaves_somebody_out() -> None:
    new = {"a": model("f", size=10000, max_length=160), "b": model("g", size=10000, max_length=160)}
    roomy = routes_of_all(new, rooms(w0=120000 + 9 * PAGE, w1=60000 + 10 * PAGE))
    assert sorted(route.home for route in roomy) == ["w0", "w1"], "with a page alone three would have fitted"
    assert sorted(route.home for route in routes_of_all(new, rooms(w0=60000 + PAGE, w1=60000 + PAGE))) == ["w0", "w1"]


def test_what_fits_nowhere_is_left_to_the_workers_to_refuse() -> None:
    assert ids(routes_of_all({"a": model("f"), "huge": model("g")}, rooms(w0=6000 + PAGE, w1=10))) == [
        "a@w0", "huge@w0", "huge@w1",
    ]  # fmt: skip


def test_who_comes_alone_goes_to_each_worker_with_room() -> None:
    tuned = model("f", "b", 4)
    held = {c.id: c.nbytes for c in model("f").components}
    workers = {
        "w0": WorkerCapacity(2000 + PAGE - 1, held),
        "w1": WorkerCapacity(2000 + PAGE, held),
        "w2": WorkerCapacity(2000 + PAGE, {}),
    }
    assert ids(routes_where_it_fits("b", tuned, workers)) == ["b@w1"]
    assert ids(routes_where_it_fits("b", tuned, {**workers, "w3": WorkerCapacity(None, {})})) == ["b@w1", "b@w3"]


def test_an_application_that_fits_nowhere_gets_the_least_lack_of_memory() -> None:
    need = 6000 + PAGE
    with pytest.raises(
        ValueError, match=f"needs {need} bytes on worker w1 .* only {need - 7} are left .* 7 bytes are missing"
    ):
        routes_where_it_fits("a", model("f"), rooms(w0=100, w1=need - 7))


def test_a_pipeline_goes_to_the_groups_with_room() -> None:
    one = model("f", span=2)
    half = 3000 + PAGE // 2
    assert ids(routes_where_it_fits("a", one, rooms(w0=half, w1=half - 1, w2=half, w3=half))) == ["a@w2+w3"]


def test_a_new_worker_gets_what_fits_in_the_order_in_which_it_came() -> None:
    known = {"a": model("f"), "wide": model("h", span=2), "x": model("g"), "b": model("f", "b", 5)}
    assert ids(routes_on_new_worker("w9", None, known)) == ["a@w9", "b@w9", "x@w9"], "nobody knows that it does not fit"
    assert ids(routes_on_new_worker("w9", 7000 + PAGE, known)) == ["a@w9", "b@w9"], "of b one component is its own"
    assert ids(routes_on_new_worker("w9", 7000 + PAGE - 1, known)) == ["a@w9"]
    assert routes_on_new_worker("w9", 5000, known) == []


def worker(free: int | None, speed: float = 1.0, device: str = "cpu") -> WorkerCapacity:
    return WorkerCapacity(free, frozenset(), speed, device)


def stages(routes: list, application: str = "a") -> list[tuple[str, int]]:
    """The workers of a pipeline, with the components of each."""
    return [(h.worker, h.last - h.first) for route in routes if route.application == application for h in route.hops]


@claim("Pipeline stages are cut by the speed and the memory that each worker reported", of="fine-tunes")
def test_the_stages_of_a_pipeline_follow_speed_and_memory() -> None:
    long = {"a": Model(tuple(chain("f", 1000, 7)), span=2)}  # sixteen components of 1,000 bytes
    room = 16000 + 8 * PAGE
    assert stages(routes_of_all(long, {"w0": worker(room), "w1": worker(room)})) == [("w0", 8), ("w1", 8)]
    assert stages(routes_of_all(long, {"w0": worker(room, 1.0), "w1": worker(room, 3.0)})) == [("w0", 4), ("w1", 12)]
    assert stages(routes_of_all(long, {"w0": worker(room, 3.0), "w1": worker(room, 1.0)})) == [("w0", 12), ("w1", 4)]
    small, large = worker(4000), worker(16000)
    assert stages(routes_of_all(long, {"w0": small, "w1": large})) == [("w0", 4), ("w1", 12)]
    assert stages(routes_of_all(long, {"w0": worker(14000, 1.0), "w1": worker(5000, 3.0)})) == [("w0", 11), ("w1", 5)]
    both = {"w0": worker(3000), "w1": worker(3000)}
    assert stages(routes_of_all(long, both)) == [("w0", 8), ("w1", 8)], "it fits nowhere, and the workers refuse it"


def test_the_second_pipeline_has_what_the_first_one_leaves_and_shares() -> None:
    chains = {name: Model(tuple(chain(of, 1000, 7)), span=2) for name, of in {"a": "f", "b": "f", "c": "g"}.items()}
    routes = routes_of_all(chains, {"w0": worker(11000), "w1": worker(60000)})
    assert stages(routes) == stages(routes, "b") == [("w0", 8), ("w1", 8)], "it is the same parameters"
    assert stages(routes, "c") == [("w0", 3), ("w1", 13)]


def test_pipelines_stay_on_one_kind_of_device() -> None:
    one = {"a": model("f", span=2)}
    mixed = {
        "w0": worker(None),
        "w1": worker(None, device="cuda:0"),
        "w2": worker(None),
        "w3": worker(None, device="cuda:1"),
    }
    assert ids(routes_of_all(one, mixed)) == ["a@w0+w2", "a@w1+w3"]
    del mixed["w3"]
    assert ids(routes_of_all(one, mixed)) == ["a@w0+w2"], "one card makes no pipeline"
    words = r"3 workers cannot form pipelines of 3 on one kind of device \(2 on cpu, 1 on cuda\); lower pipeline"
    with pytest.raises(ValueError, match=words):
        routes_of_all({"a": model("f", span=3)}, mixed)


def test_speeds_are_compared_in_eighths_of_the_fastest() -> None:
    found = relative_speeds({"a": worker(1, 3.0), "b": worker(1, 2.9), "c": worker(1, 1.0), "d": worker(1, 0.01)})
    assert found == {"a": 1.0, "b": 1.0, "c": 0.375, "d": 0.125}
    assert relative_speeds({"a": worker(1, 3.0), "b": worker(1, 0.0)}) == {"a": 1.0, "b": 1.0}, "one is not known"


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_by_speed_is_the_best_that_fits(seed: int) -> None:
    """All cuts of short chains are tried."""
    chance = random.Random(seed)
    components = [replace(c, nbytes=chance.randint(1, 9)) for c in chain("f", 1, 2)]
    count, total = len(components), sum(c.nbytes for c in components)
    speeds = [chance.choice((1.0, 0.5, 0.25)) for _ in range(2)]
    free = [chance.choice((None, chance.randint(1, total))) for _ in range(2)]

    def longest(cut: int) -> float:
        sizes = [sum(c.nbytes for c in part) for part in (components[:cut], components[cut:])]
        fits = all(left is None or size <= left for size, left in zip(sizes, free, strict=True))
        kv = all(any(c.kv is not None for c in part) for part in (components[:cut], components[cut:]))
        return max(size / speed for size, speed in zip(sizes, speeds, strict=True)) if fits and kv else float("inf")

    best = min(longest(cut) for cut in range(1, count))
    found = uneven_borders(components, speeds, free)
    assert (found == []) == (best == float("inf"))
    if found:
        assert (found[0], found[-1], longest(found[1])) == (0, count, best)

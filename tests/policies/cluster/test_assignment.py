"""Where applications go: everywhere while memory allows, else where they fit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from blockwright.policies.cluster.assignment import WorkerCapacity, routes_of_all, routes_on_new_worker, routes_where_it_fits
from blockwright.policies.model.chain import Component
from blockwright.policies.model.partition import place
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

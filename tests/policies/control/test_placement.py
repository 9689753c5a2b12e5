"""The controller places by memory, deploys a pressed block once more, and takes it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control.events import (
    Add,
    Added,
    Idle,
    KvCapacity,
    Load,
    LoadRefused,
    Pressed,
    Remove,
    Unload,
)
from blockwright.policies.control.loads import NoCapacity
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import SIZE, FakeCluster, Published, application, kinds

PAGE = 2048  # bytes, of both attentions
A, B = application("a", "eAmBnh"), application("b", "eAmCoh")  # six components of 100 bytes; the first three are shared
OWN = Pressed("w0", 1, (PressedBlock(0.9, {"b": (3, 5)}),))


class Rooms(FakeCluster):
    """Workers of different memory; what they answer is what their parameters leave."""

    def __init__(self, **memory: int) -> None:
        super().__init__(*memory, memory=memory, block_idle=60.0)
        self.memory = memory

    def capacity(self, worker: str) -> KvCapacity:
        known = self.workers[worker]
        return KvCapacity(worker, known.incarnation, self.memory[worker] - SIZE * len(known.held))


def started(**memory: int) -> Rooms:
    return Rooms(**memory).serve(A, B)


def narrow() -> Rooms:
    """Both applications on the first worker; on the second there is room for part of one."""
    bench = started(w0=900 + 3 * PAGE, w1=500 + PAGE // 2)
    assert bench.routes() == ["a@w0", "b@w0"]
    return bench


def test_what_does_not_fit_everywhere_is_served_where_it_fits() -> None:
    bench = narrow()
    assert bench.state.whole
    assert bench.state.workers["w1"].state == "ready"
    assert started(w0=900 + PAGE, w1=900 + PAGE).routes() == ["a@w0", "a@w1", "b@w0", "b@w1"]


def test_an_addition_that_fits_on_one_worker_is_not_refused() -> None:
    bench = narrow()
    small = replace(application("c", "xY"), model="c")
    assert kinds(bench(Add(small)), Added) == [Added("c")]
    assert bench.routes() == ["a@w0", "b@w0", "c@w0", "c@w1"]
    large = replace(application("d", "pQrStu"), model="d")
    with pytest.raises(ValueError, match=r"needs \d+ bytes on worker w0 .*; remove another application"):
        narrow()(Add(replace(large, components=(*large.components[:5], replace(large.components[5], nbytes=1 << 20)))))
    assert kinds(bench(Add(large)), Added) == [Added("d")]
    assert "d@w0" in bench.routes()
    assert "d@w1" not in bench.routes()


def test_a_pressed_block_is_deployed_alone_and_a_new_version_has_the_old_route_too() -> None:
    bench = narrow()
    version = bench.state.version
    effects = bench(OWN)
    loads = kinds(effects, Load)
    assert [(e.worker, e.load.first, e.load.last, e.load.idle) for e in loads] == [("w1", 3, 5, 60.0), ("w1", 5, 6, 60.0)]
    (published,) = kinds(effects, Published)
    assert [(r.id, r.version) for r in published.update.routes if r.application == "b"] == [
        ("b@w0", version),
        ("b@w0+w1", version + 1),
    ]
    assert published.first == ("w0", "w1")
    assert not kinds(bench(OWN), Load), "it is there"


@claim("A block under load is copied alone to another worker and goes again when idle", of="fine-tunes")
def test_it_goes_after_idleness_and_only_what_was_loaded_for_it() -> None:
    bench = narrow()
    bench(OWN)
    effects = bench(Idle("w1", 1, ("b",)))
    assert bench.routes() == ["a@w0", "b@w0"]
    (unload,) = kinds(effects, Unload)
    assert (unload.worker, unload.holder, unload.ids) == ("w1", "b", tuple(c.encode() * 16 for c in "Coh"))
    order = [type(e).__name__ for e in effects]
    assert order.index("Published") < order.index("Unload"), "no gateway sends there any more"
    assert not bench(Idle("w1", 1, ("b",)))
    bench(OWN)
    assert "b@w0+w1" in bench.routes(), "and comes again"


def test_one_that_cannot_be_loaded_is_given_up_and_not_tried_again() -> None:
    bench = narrow()
    bench.broken["w1"] = "no room"
    bench(OWN)
    assert bench.routes() == ["a@w0", "b@w0"]
    assert not bench.state.holdings.copies(lambda _: True)
    bench.broken.clear()
    assert not kinds(bench(OWN), Load)


def test_one_that_finds_no_room_is_given_up_and_its_model_stays_where_it_is() -> None:
    """It was on demand then, and left the worker that served it."""
    bench = narrow()
    load, *_ = kinds(bench.state.handle(OWN, 0.0), Load)
    bench(LoadRefused("w1", load.incarnation, load.load, NoCapacity("no room", 100, False, {})))
    assert bench.routes() == ["a@w0", "b@w0"]
    assert not bench.state.holdings.copies(lambda _: True)


@pytest.mark.parametrize("worker", ["w0", "w1"])
def test_a_death_ends_it_and_the_base_comes_back(worker: str) -> None:
    bench = narrow()
    bench(OWN)
    bench.down(worker)
    assert bench.routes() == ([] if worker == "w0" else ["a@w0", "b@w0"])
    bench.up(worker)
    assert bench.routes() == ["a@w0", "b@w0"]
    assert not bench.state.residency["w1"].resident


def test_an_application_that_goes_takes_it_along() -> None:
    bench = narrow()
    bench(OWN)
    bench(Remove("b"))
    assert bench.routes() == ["a@w0"]
    assert not bench.state.residency["w1"].hops.get("b")
    assert not bench.state.holdings.copies(lambda _: True)


def test_late_words_and_other_lives_change_nothing() -> None:
    bench = narrow()
    assert not bench(Pressed("w0", 7, OWN.blocks))
    bench(Remove("b"))
    assert not kinds(bench(OWN), Load), "it has gone meanwhile"
    assert not bench(Idle("w1", 1, ("b",)))

"""Loads that wait for sources: which workers the controller names, in which order, and what becomes of it when they die."""

from __future__ import annotations

from collections.abc import Collection

from blockwright.policies.control.events import Load, Loaded, LoadFailed, LoadLacks, Serve, Undeploy, WorkerEnters
from blockwright.policies.control.snapshot import copy_of
from blockwright.tests.fake_cluster import application, kinds
from blockwright.tests.policies.control.test_worker_reports import Reporting

A = application("a", "eAmBnh")
IDS = tuple(component.shared for component in A.components)


class Cold(Reporting):
    """w0 has the files, and workers that join have not: their loads are answered by hand."""

    def __init__(self, *names: str) -> None:
        super().__init__("w0")
        self(Serve((A,)))
        self.joins("w0", 1 << 20)
        self.loads: dict[str, Load] = {}
        self.manual = True
        for name in names:
            self(WorkerEnters(name, {}))
            self._note(self.joins(name, 1 << 20))

    def _note(self, effects: Collection[object]) -> list[Load]:
        found = kinds(effects, Load)
        self.loads |= {load.worker: load for load in found}
        return found

    def lacks(self, name: str) -> dict[str, list[str] | None]:
        """A worker says that it has no files; return the sources of the loads that are asked for now."""
        load = self.loads[name]
        found = self._note(self(LoadLacks(name, load.incarnation, load.load, IDS)))
        return {one.worker: one.load.sources for one in found}

    def ends(self, name: str, *, failed: bool = False) -> dict[str, list[str] | None]:
        load = self.loads[name]
        what = name, load.incarnation, load.load
        found = self._note(self(LoadFailed(*what, "nothing came") if failed else Loaded(*what)))
        self.state.holdings.check()
        return {one.worker: one.load.sources for one in found}


def test_a_worker_is_first_asked_without_sources() -> None:
    cold = Cold("far")
    assert cold.loads["far"].load.sources is None
    assert cold.lacks("far") == {"far": ["w0"]}
    assert cold.ends("far") == {}
    assert not cold.state.distribution.sources.given


def test_who_has_it_gives_to_two_and_the_others_wait() -> None:
    cold = Cold("f1", "f2", "f3", "f4", "f5")
    assert [cold.lacks(name) for name in ("f1", "f2", "f3", "f4", "f5")] == [{"f1": ["w0"]}, {"f2": ["w0"]}, {}, {}, {}]
    assert cold.ends("f1") == {"f3": ["f1"], "f4": ["w0"], "f5": ["f1"]}


def test_without_anybody_who_has_it_one_goes_to_the_origin_and_the_others_to_that_one() -> None:
    cold = Cold("f1", "f2")
    cold.down("w0")
    assert cold.lacks("f1") == {"f1": []}
    assert cold.lacks("f2") == {}
    assert cold.ends("f1") == {"f2": ["f1"]}


def test_a_load_that_fails_and_a_worker_that_dies_let_the_next_go_on() -> None:
    cold = Cold("f1", "f2", "f3")
    cold.down("w0")
    cold.lacks("f1")
    cold.lacks("f2")
    assert cold.ends("f1", failed=True) == {"f2": []}
    assert cold.lacks("f3") == {}
    found = cold._note(cold.down("f2"))
    assert {one.worker: one.load.sources for one in found} == {"f3": []}


def test_news_of_a_former_life_change_nothing() -> None:
    cold = Cold("f1", "f2", "f3")
    for name in ("f1", "f2", "f3"):
        cold.lacks(name)
    former = cold.loads["f1"]
    cold(Loaded("f1", former.incarnation - 1, former.load))
    assert {*cold.state.distribution.sources.given} == {"f1", "f2"}
    cold(LoadLacks("f3", 1, former.load, IDS))
    cold(LoadLacks("nobody", 1, former.load, IDS))
    assert {*cold.state.distribution.sources.waiting} == {"f3"}


def test_a_model_that_is_withdrawn_meanwhile_leaves_nobody_waiting() -> None:
    cold = Cold("f1", "f2", "f3")
    for name in ("f1", "f2", "f3"):
        cold.lacks(name)
    cold(Undeploy("a"))
    for name in ("f1", "f2", "f3"):
        cold.ends(name)
    assert not cold.state.distribution.sources.waiting
    assert not cold.state.distribution.sources.given


def test_who_waits_is_part_of_a_snapshot() -> None:
    cold = Cold("f1", "f2", "f3")
    for name in ("f1", "f2", "f3"):
        cold.lacks(name)
    assert copy_of(cold.state).distribution.sources == cold.state.distribution.sources

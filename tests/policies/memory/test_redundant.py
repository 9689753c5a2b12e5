"""Copies of cached pages on several workers: all idle ones but the last used are marked, and the only copy never."""

from __future__ import annotations

import random

from blockwright.policies.memory.cache_news import CacheReport, MarkPages
from blockwright.policies.memory.prefix_index import Key
from blockwright.policies.memory.redundant import RedundantPages
from blockwright.tests.claims import claim

PAGES: list[Key] = [(bytes([n]), b"line", 0) for n in range(6)]
WORKERS = ("w0", "w1", "w2")
FIRST, SECOND = PAGES[:2]


def told(*idle: tuple[Key, float], gone: list[Key] | None = None, used: list[Key] | None = None) -> CacheReport:
    """A report on pages with the seconds since their last use."""
    return CacheReport(1, False, 0, gone or [], used or [], [key for key, _ in idle], [age for _, age in idle])


def test_the_copy_that_was_used_last_stays_whatever_the_clocks_of_workers_say() -> None:
    cluster = RedundantPages()
    cluster.report("w0", told((FIRST, 50.0), (SECOND, 1.0)), 100.0)
    cluster.report("w1", told((FIRST, 10.0)), 130.0)
    cluster.report("w2", told((FIRST, 60.0)), 130.0)
    assert cluster.decide() == {"w0": MarkPages([FIRST]), "w2": MarkPages([FIRST])}
    assert cluster.decide() == {}, "nothing has changed"


def test_a_copy_in_use_is_neither_marked_nor_a_reason_to_mark_another() -> None:
    cluster = RedundantPages()
    cluster.report("w0", told((FIRST, 50.0)), 100.0)
    cluster.report("w1", told(used=[FIRST]), 100.0)
    assert cluster.decide() == {}


def test_a_mark_is_taken_back_once_no_other_worker_has_the_page() -> None:
    for gone in (True, False):
        cluster = RedundantPages()
        cluster.report("w0", told((FIRST, 50.0)), 100.0)
        cluster.report("w1", told((FIRST, 10.0)), 100.0)
        assert cluster.decide() == {"w0": MarkPages([FIRST])}
        cluster.report("w1", told(used=[FIRST]), 110.0)
        assert cluster.decide() == {}, "the other one is there, if in use"
        if gone:
            cluster.report("w1", told(gone=[FIRST]), 120.0)
        else:
            cluster.lose("w1")
        assert cluster.decide() == {"w0": MarkPages(kept=[FIRST])}


def test_what_was_not_marked_is_decided_about_again() -> None:
    cluster = RedundantPages()
    for worker, age in (("w0", 50.0), ("w1", 10.0)):
        cluster.report(worker, told((FIRST, age)), 100.0)
    for _ in range(2):
        assert cluster.decide() == {"w0": MarkPages([FIRST])}
        cluster.unmarked("w0", [FIRST, SECOND])
    cluster.report("w0", told((FIRST, 1.0)), 110.0)  # it was used meanwhile
    assert cluster.decide() == {"w1": MarkPages([FIRST])}


def test_a_report_that_begins_anew_replaces_all_that_was_said() -> None:
    cluster = RedundantPages()
    cluster.report("w0", told((FIRST, 50.0), (SECOND, 50.0)), 100.0)
    cluster.report("w1", told((FIRST, 10.0), (SECOND, 10.0)), 100.0)
    cluster.report("w0", CacheReport(9, True, 0, idle=[SECOND], ages=[60.0]), 110.0)
    assert cluster.decide() == {"w0": MarkPages([SECOND])}


@claim("Cached pages that idle on several workers are evicted first, except the copy used last", of="serving")
def test_marks_are_what_follows_from_all_copies_whatever_happens() -> None:
    """Marks by changes are those that a look at everything gives, and there is always an unmarked copy."""
    for seed in range(100):
        chance, cluster = random.Random(seed), RedundantPages()
        copies: dict[Key, dict[str, float]] = {key: {} for key in PAGES}  # time of the last use; -1: in use
        marked: dict[tuple[Key, str], bool] = {}
        for now in range(1, 60):
            key, worker = chance.choice(PAGES), chance.choice(WORKERS)
            act = chance.random()
            marked.pop((key, worker), None)
            if act < 0.5:
                age = chance.random() / 2
                copies[key][worker] = now - age
                cluster.report(worker, told((key, age)), now)
            elif act < 0.7:
                copies[key][worker] = -1
                cluster.report(worker, told(used=[key]), now)
            else:
                copies[key].pop(worker, None)
                cluster.report(worker, told(gone=[key]), now)
            if chance.random() < 0.3:
                continue
            for at, order in cluster.decide().items():
                assert not set(order.redundant) & set(order.kept)
                marked.update({(one, at): True for one in order.redundant} | {(one, at): False for one in order.kept})
            for one, there in copies.items():
                idle = {at: used for at, used in there.items() if used >= 0}
                now_marked = {at for at in idle if marked.get((one, at))}
                assert not there or set(there) - now_marked, "the only copy goes first"
                if len(idle) > 1:
                    assert now_marked == idle.keys() - {max(idle, key=lambda at: idle[at])}
                elif len(there) == 1:
                    assert not now_marked

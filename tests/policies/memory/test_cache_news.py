"""News of cached pages: the sum of all reports says what is idle and what is not, after any changes of a page table."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.memory import cache_news, eviction
from blockwright.policies.memory.cache_news import CacheNews, CacheReport
from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.memory.prefix_index import Key
from blockwright.policies.model.runs import Span

CHUNK = 64 * 1024
SPAN = Span.of(0, "kv", [(b"a0",), (b"a1",)], [b"l0", b"line"])


def table() -> PageTable:
    pages = PageTable(ChunkPool(6, CHUNK), capped=True)
    pages.add_layout("kv", CHUNK // 4)
    pages.news = CacheNews()
    return pages


def report(pages: PageTable, after: int, now: float = 0.0) -> CacheReport:
    assert pages.news is not None
    return pages.news.report(after, now, pages.idle, pages.idle.__contains__, pages.key)


class Reader:
    """A reader that adds up reports: by page the time of its last use, None while it is used."""

    def __init__(self) -> None:
        self.number = 0
        self.known: dict[Key, float | None] = {}

    def read(self, pages: PageTable, now: float) -> None:
        while True:
            found = report(pages, self.number, now)
            self.number = found.number
            if found.anew:
                self.known = {}
            for key in found.gone:
                self.known.pop(key, None)
            self.known.update(dict.fromkeys(found.used))
            self.known.update({key: now - age for key, age in zip(found.idle, found.ages, strict=True)})
            assert len(found.gone) + len(found.used) + len(found.idle) <= cache_news.MOST
            if not found.left:
                return


@pytest.mark.parametrize("most", [1, 3, 4096])
def test_reports_add_up(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_news, "MOST", most)
    monkeypatch.setattr(cache_news, "SPARE", most)
    for seed in range(40):
        chance, reader = random.Random(seed), Reader()
        pages = table()
        listed: list[int] = []
        released: dict[Key, float] = {}
        assert pages.news is not None
        for now in range(1, 150):
            pages.news.at(float(now))
            act = chance.random()
            idle = list(pages.idle)
            if act < 0.4 and (made := eviction.allocate_page(pages, SPAN, chance.choice("ab"))) is not None:
                pages.publish(made, bytes([chance.randrange(20)]))
                listed.append(made)
            elif act < 0.6 and listed:
                handle = listed.pop(chance.randrange(len(listed)))
                key = pages.key(handle)
                pages.release([handle], "a")
                if key is not None and handle in pages.idle:
                    released[key] = float(now)
            elif act < 0.7 and idle:
                pages.share(idle[0], "a")
                listed.append(idle[0])
            elif act < 0.8 and idle:
                pages.mark(chance.choice(idle))
            elif act < 0.85 and pages.redundant:
                handle = min(pages.redundant)
                pages.unmark(handle)
                released[pages.key(handle)] = float(now)  # type: ignore[index]
            elif act < 0.9:
                reader.read(pages, now)
            elif act < 0.92:
                reader.number = chance.choice([0, 77])  # it lost track
                reader.read(pages, now)
            elif act < 0.93:
                before = {handle: pages.key(handle) for handle in pages.idle}
                made = pages.cut({(1, b"line")})
                listed = [part for handle in listed for part in made.get(handle, [handle])]
                for handle, key in before.items():
                    parts = [pages.key(part) for part in made.get(handle, [handle])]
                    released.update({part: released[key] for part in parts if part is not None})  # type: ignore[index]
            assert len(pages.redundant) <= pages.cached
            pages.check({handle: listed.count(handle) for handle in listed})
        reader.read(pages, 150)
        for handle in pages.idle:
            known = pages.key(handle)
            assert known is not None
            assert reader.known[known] == released[known], seed
        for known, used in reader.known.items():
            found = pages.find_key(known)
            assert found is not None, seed
            assert (used is None) == (found not in pages.idle), seed


def test_notes_are_bounded_while_nobody_asks() -> None:
    pages = table()
    assert pages.news is not None
    reader = Reader()
    reader.read(pages, 0.0)
    for number in range(5000):
        handle = eviction.allocate_page(pages, SPAN, "a")
        assert handle is not None
        pages.publish(handle, number.to_bytes(2, "big"))
        pages.release([handle], "a")
    found = report(pages, reader.number)
    assert found.anew
    assert len(found.idle) == pages.cached


def test_a_report_costs_what_has_changed() -> None:
    pages, reader = table(), Reader()
    handles = []
    for number in range(10):
        handles.append(pages.allocate(SPAN, "a"))
        pages.publish(handles[-1], bytes([number]))  # type: ignore[arg-type]
        pages.release([handles[-1]], "a")  # type: ignore[list-item]
    reader.read(pages, 0.0)
    assert (report(pages, reader.number).idle, reader.number) == ([], 1)
    pages.share(handles[3], "a")  # type: ignore[arg-type]
    found = report(pages, 2)
    assert (found.anew, found.gone, found.used, found.idle) == (False, [], [(bytes([3]), b"line", 0)], [])
    pages.news = None
    assert pages.fork(ChunkPool(6, CHUNK)).news is None

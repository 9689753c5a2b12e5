"""Pages are known where requests with their tokens were sent, by lineage, and as many as the worker holds."""

from dataclasses import replace

from blockwright.policies.model.chain import Block, Chain
from blockwright.policies.requests.known_pages import KnownPages
from blockwright.tests.fake_cluster import application

PAGES = [bytes([i]) * 16 for i in range(4)]


def chain(name: str, ids: str) -> Chain:
    return Chain(name, (Block(application(name, ids).components),), 4096)


def test_leading_pages_count() -> None:
    pages = KnownPages()
    pages.note("w0", b"a", PAGES[:3])
    assert [pages.leading("w0", b"a", PAGES), pages.leading("w0", b"b", PAGES), pages.leading("w1", b"a", PAGES)] == [
        3,
        0,
        0,
    ]
    assert pages.leading("w0", b"a", PAGES[1:2] + PAGES[3:]) == 1
    pages.lose("w0")
    assert pages.leading("w0", b"a", PAGES) == 0


def test_the_last_pages_of_the_least_recent_requests_are_forgotten_first() -> None:
    pages = KnownPages()
    pages.note("w0", b"a", PAGES, most=4)
    pages.note("w0", b"b", PAGES[:2], most=4)
    assert (pages.leading("w0", b"a", PAGES), pages.leading("w0", b"b", PAGES)) == (2, 2)
    pages.note("w0", b"a", PAGES[:1], most=4)
    pages.note("w0", b"b", PAGES[2:3], most=4)
    assert (pages.leading("w0", b"a", PAGES), pages.leading("w0", b"b", PAGES)) == (1, 3)


def test_chains_that_share_all_layers_with_kv_share_pages() -> None:
    pages = KnownPages()
    one, other = chain("a", "eAmBnh"), chain("c", "eAxBnh")
    same = chain("b", "eAmBph")
    assert pages.lineage(one) == pages.lineage(same) != pages.lineage(other)
    changed = replace(other, application="a")
    assert pages.lineage(changed) == pages.lineage(other), "an id may get another chain"
    pages.keep(["b"])
    assert pages.lineage(one) == pages.lineage(same)

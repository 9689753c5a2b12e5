"""Worker deaths of a request: when it is suspect, when it is poison, and what is kept for it."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.poison import (
    POISON_DEATHS,
    SUSPECT_DEATHS,
    SUSPECT_NEAR,
    Deaths,
    Quarantine,
    outnumbered,
)
from blockwright.tests.claims import claim

SUSPECT = Deaths(present=SUSPECT_DEATHS)


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(w, i, i + 1) for i, w in enumerate(workers)))


@claim("A request that kills its worker again and again fails, and no other request does", of="faults", headline=True)
def test_deaths_that_it_was_present_at_make_a_request_suspect_and_then_poison() -> None:
    deaths = Deaths()
    seen = []
    for _ in range(POISON_DEATHS):
        deaths.count(present=True)
        seen.append((deaths.suspect, deaths.poison))
    assert seen == [(n >= SUSPECT_DEATHS, n >= POISON_DEATHS) for n in range(1, POISON_DEATHS + 1)]


def test_deaths_near_it_count_only_in_a_row() -> None:
    deaths = Deaths()
    for _ in range(SUSPECT_NEAR - 1):
        deaths.count(present=False)
    deaths.planned()
    deaths.count(present=False)
    assert not deaths.suspect
    for _ in range(SUSPECT_NEAR - 1):
        deaths.count(present=False)
    assert deaths.suspect
    assert not deaths.poison, "it was never seen at work"


def test_quarantine_closes_all_workers_of_a_route_until_it_is_released() -> None:
    quarantine = Quarantine()
    quarantine.keep("a", route("w0", "w1"))
    assert quarantine.workers() == {"w0", "w1"}
    assert not quarantine.lets(Deaths(), [route("w1", "w2"), route("w0")])
    assert quarantine.lets(Deaths(), [route("w1", "w2"), route("w2")])
    assert quarantine.lets(SUSPECT, [route("w0")]), "it waits for a route of its own"
    quarantine.check()
    quarantine.keep("b", route("w1"))
    with pytest.raises(AssertionError, match="two suspects"):
        quarantine.check()
    assert quarantine.release("b") == route("w1")
    assert quarantine.release("b") is None
    assert quarantine.workers() == {"w0", "w1"}


def test_suspects_share_one_route_while_there_are_others() -> None:
    assert outnumbered(SUSPECT, [SUSPECT, Deaths()])
    assert not outnumbered(SUSPECT, [SUSPECT, Deaths(near=SUSPECT_NEAR)])
    assert not outnumbered(Deaths(), [Deaths(), SUSPECT]), "of no concern to who is none"

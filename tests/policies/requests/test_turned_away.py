"""A request that its worker has given back: there again, elsewhere, or nowhere."""

import pytest

from blockwright.policies.requests.admission import BROKEN, CROWDED, REFUSED, YIELDED
from blockwright.policies.requests.dispatch import UNKNOWN, RouteQuery
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.turned_away import AVOID, TurnedAway, turned_away
from blockwright.tests.policies.requests.test_dispatch import held

WANTED = RouteQuery("r", "m", 100)
LATER, NEVER = CROWDED + "others lie there", REFUSED + "it is too long"


@pytest.mark.parametrize("reason", ["route", "host-lost", "deadline"])
def test_what_lacks_no_room_goes_on_but_not_there_at_once(reason: str) -> None:
    assert turned_away(WANTED, "m@w0", reason, held({"w0": 90}, {"w0": 400})) == TurnedAway(AVOID)


def test_what_its_model_cannot_compute_is_tried_nowhere_else() -> None:
    outcome = turned_away(WANTED, "m@w0", BROKEN + "no numbers", held({"w0": 120, "w1": 120}, {}))
    assert outcome == TurnedAway(refused=True, hopeless=Refusal.BROKEN)


def test_what_waits_for_credit_goes_there_as_soon_as_it_comes() -> None:
    assert turned_away(WANTED, "m@w0", YIELDED, held({"w0": 90}, {"w0": 400})) == TurnedAway()


def test_more_than_was_free_is_waited_for_where_it_can_come() -> None:
    assert turned_away(WANTED, "m@w0", LATER, held({"w0": 120}, {"w0": 400})) == TurnedAway(room=121, comes=True)
    assert turned_away(WANTED, "m@w0", LATER, held({"w0": 120}, {"w0": 120})) == TurnedAway(AVOID, 121), "all that ever is"
    unknown = TurnedAway(room=UNKNOWN, comes=True)
    assert turned_away(WANTED, "m@w0", LATER, held({"w0": 120}, {"w0": UNKNOWN})) == unknown, "its worker will say"


def test_what_never_holds_it_is_not_tried_again_and_another_is_if_it_may() -> None:
    hopeless, elsewhere = TurnedAway(AVOID, refused=True, hopeless=Refusal.TOO_LONG), TurnedAway(AVOID, refused=True)
    assert turned_away(WANTED, "m@w0", NEVER, held({"w0": 120}, {"w0": 400})) == hopeless
    assert turned_away(WANTED, "m@w0", LATER, held({"w0": 90}, {"w0": 99})) == hopeless, "room that comes does not suffice"
    assert turned_away(WANTED, "m@w0", NEVER, held({"w0": 120, "w1": 100}, {})) == elsewhere
    assert turned_away(WANTED, "m@w0", NEVER, held({"w0": 120, "w1": 90}, {"w0": 120, "w1": 400})) == elsewhere, "later"
    assert turned_away(WANTED, "m@w0", NEVER, held({"w0": 120, "w1": 90}, {"w0": 120, "w1": 90})) == hopeless
    tried = RouteQuery("r", "m", 100, refused={"m@w1"})
    assert turned_away(tried, "m@w0", NEVER, held({"w0": 120, "w1": 100}, {})) == hopeless
    assert tried.refused == {"m@w1"}, "nothing is changed here"

"""Requests on their way are those that were sent and have not come, whichever is heard first."""

from __future__ import annotations

from dataclasses import replace

from blockwright.policies.prediction.in_flight import PATIENCE, InFlight

from ..sweep_world import submission

ONE, OTHER = (submission(f"r{n}", [1, 2, 3], 9, "a@w0") for n in range(2))


def test_until_it_is_seen_it_is_on_its_way() -> None:
    flying = InFlight()
    flying.place(ONE, 1.0)
    flying.place(OTHER, 2.0)
    assert flying.waiting(2.0) == [ONE, OTHER]
    flying.show("r0", 1, 3.0)
    assert flying.waiting(3.0) == [OTHER]
    flying.forget()
    assert flying.waiting(3.0) == []


def test_what_has_come_is_not_expected_again_but_another_attempt_is() -> None:
    flying = InFlight()
    flying.show("r0", 1, 1.0)
    flying.place(ONE, 1.5)
    assert flying.waiting(1.5) == []
    flying.place(again := replace(ONE, attempt=2), 1.6)
    assert flying.waiting(1.6) == [again]


def test_an_attempt_that_was_lost_is_not_expected_once_that_is_known() -> None:
    flying = InFlight()
    flying.place(ONE, 1.0)
    flying.place(OTHER, 1.0)
    flying.leave("r0")
    assert flying.waiting(1.0) == [OTHER]
    flying.place(again := replace(ONE, attempt=2), 1.5)
    assert flying.waiting(1.5) == [OTHER, again]


def test_nobody_is_expected_for_ever() -> None:
    flying = InFlight()
    flying.place(ONE, 1.0)
    flying.place(OTHER, 2.0)
    assert flying.waiting(1.0 + PATIENCE) == [OTHER]
    assert flying.waiting(2.0 + PATIENCE) == []
    flying.show("r0", 1, 10.0)
    flying.place(replace(ONE, attempt=2), 10.0)
    flying.place(ONE, 10.0 + PATIENCE)
    assert flying.waiting(10.0 + PATIENCE) == [ONE], "what came so long ago is not known any more"

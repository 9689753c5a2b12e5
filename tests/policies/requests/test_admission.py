"""Whether a sequence can be served: by the tokens that fit, by a page at least, by its part of a limit."""

from __future__ import annotations

from blockwright.policies.requests.admission import admit, capacity_tokens, cramped, part
from blockwright.tests.claims import claim


@claim("A request that can never fit is refused with both numbers", of="serving")
def test_what_fits_is_admitted_and_a_refusal_has_the_two_numbers() -> None:
    assert admit(64, 64) is None
    assert "for 65 tokens and a worker has memory for 64;" in str(admit(65, 64))
    assert "has memory for 0;" in str(admit(1, -5))


def test_only_whole_pages_count() -> None:
    assert capacity_tokens(99, 16, 10) == 9 * 16
    assert capacity_tokens(0, 16, 0) > 1 << 60, "a hop without KV holds any sequence"


def test_room_for_less_than_a_page_serves_nobody() -> None:
    assert cramped("w0", "m", 10, 10) == ""
    assert cramped("w0", "m", 0, 0) == "", "a hop without KV"
    why = cramped("w0", "m", 9, 10)
    assert why.startswith("worker w0 has 9 B left for sequences of m, less than one page of 10 B;")


def test_sharers_take_an_equal_part_of_what_is_free() -> None:
    assert part(100, own=10, others=30, sharers=2) == 10 + 30
    assert part(100, own=90, others=30, sharers=2) == 90, "nothing is free"

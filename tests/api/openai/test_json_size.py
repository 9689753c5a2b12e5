"""Bodies of too many values are refused before they are parsed; punctuation within strings is none."""

from __future__ import annotations

import json

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.openai.json_size import CONTAINER, DIGITS, MEMBER, check_size

TRICKY = ['"', "\\", '\\"', ",", ":", "[{", "\n", "é", 'a\\\\",', ""]


def refused(raw: str, limit: int) -> bool:
    try:
        check_size(raw.encode(), limit)
    except ApiError as error:
        return (error.status, f"more than {limit} values" in error.message) == (400, True)
    return False


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ([1] * 11, 10 + CONTAINER),
        ({str(i): i for i in range(11)}, 10 + 11 * MEMBER + CONTAINER),
        ([[]] * 11, 10 + 12 * CONTAINER),
        ([TRICKY], 9 + 2 * CONTAINER),
        ({"".join(TRICKY) * 9000: "".join(TRICKY * 20_000)}, MEMBER + CONTAINER),
        (["x" * 65_533 + '"', ",,,,", '"' * 70_000 + ","], 2 + CONTAINER),
    ],
)
def test_the_price_is_that_of_the_values(value: object, units: int) -> None:
    for ascii in (False, True):
        raw = json.dumps(value, ensure_ascii=ascii)
        assert not refused(raw, units)
        assert refused(raw, units - 1)


def test_a_long_number_is_refused_and_a_long_text_of_digits_is_not() -> None:
    rest = "x" * 70_000
    check_size(json.dumps({"a": "9" * 9000, "b": rest, "c": int("9" * (DIGITS - 1))}).encode())
    with pytest.raises(ApiError, match=f"a number of more than {DIGITS} digits"):
        check_size(f'{{"a": {"9" * DIGITS}, "b": "{rest}"}}'.encode())

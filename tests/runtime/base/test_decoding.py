from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from blockwright.runtime.base.decoding import decode, decoder
from blockwright.runtime.base.errors import DecodeError
from blockwright.runtime.base.schema import schema_tag


@dataclass(frozen=True, slots=True)
class Shelf:
    boxes: dict[str, Shelf] = field(default_factory=dict)


def test_plain_data_with_names_is_taken_as_it_is():
    data = {"routes": 3, "reports": {"a": [1, None]}, "sweep_age": 0.5}
    assert decode(dict[str, Any], data) is data
    assert decode(dict[str, Any], {}) == {}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"routes": 3, 4: 5}, "expected str, got int"),
        ({b"routes": 3}, "expected str, got bytes"),
        ([["routes", 3]], "expected dict, got list"),
        (None, "expected dict, got NoneType"),
    ],
)
def test_plain_data_without_names_is_refused(data, why):
    with pytest.raises(DecodeError, match=why):
        decode(dict[str, Any], data)


def test_a_dict_may_hold_what_holds_it():
    tag = schema_tag(Shelf)
    assert decode(Shelf, [tag, {"a": [tag, {"b": [tag, {}]}]}]) == Shelf({"a": Shelf({"b": Shelf()})})


def test_plans_are_compiled_once():
    assert decoder(dict[str, int]) is decoder(dict[str, int])

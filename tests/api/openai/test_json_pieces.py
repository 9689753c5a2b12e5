"""JSON in pieces equals JSON at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwright.api.openai.json_pieces import written

VALUES: list[Any] = [
    None,
    True,
    1.5,
    'a"\n\u20ac',
    [],
    {},
    {"a": [], "b": {}, "c": [1, [2, {"d": None}]]},
    list(range(5000)),
    {"top": [{"a": 0.5, "b": list(range(3))}] * 3000, "text": ["x", "\u00e9"] * 1024},
    [[i] * (i % 3) for i in range(2500)],
]


@pytest.mark.parametrize("value", VALUES)
def test_equals_dumps(value: Any) -> None:
    assert written(value) == json.dumps(value)

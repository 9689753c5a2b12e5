"""Reads one field of a JSON body with its type and range checked; every refusal names field, value and remedy.

``null`` and an absent field are the same: the default. ``true`` is not a number here, nor is NaN or an infinity.
"""

from __future__ import annotations

from typing import Any

from blockwright.api.errors import bad_request

Body = dict[str, Any]


def shown(value: Any) -> str:
    """A value as it may stand in a message: short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def boolean(body: Body, name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_request(f"{name} is {shown(value)}; give true or false", name, "invalid_type")
    return value


def integer(body: Body, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 16.0 from clients that know one number type
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{name} is {shown(value)}; give an integer", name, "invalid_type")
    if not low <= value <= high:
        raise bad_request(f"{name} is {shown(value)}; give an integer from {low} to {high}", name)
    return value


def number(body: Body, name: str, low: float, high: float, *, above: bool = False) -> float | None:
    """``above``: the value must be greater than ``low``, not equal."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"{name} is {shown(value)}; give a number", name, "invalid_type")
    if not low <= value <= high or (above and value == low):  # NaN is within no bounds
        bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise bad_request(f"{name} is {shown(value)}; give a number {bound}", name)
    return float(value)


def string(body: Body, name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request(f"{name} is {shown(value)}; give a string", name, "invalid_type")
    return unicode_text(value, name)


def unicode_text(value: str, name: str) -> str:
    """Refuses lone surrogates, which JSON can spell and no tokenizer accepts."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{name} has a lone surrogate at character {error.start}; send valid Unicode", name) from None
    return value

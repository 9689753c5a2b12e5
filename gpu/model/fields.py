"""Typed reading of a checkpoint's JSON: every wrong or missing value becomes one clear sentence.

Knows nothing of architectures. Standard library only.
"""

from __future__ import annotations

import json
import math
import reprlib
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..regular_file import read_regular

LARGEST = 2**31 - 1  # largest integer: kernels and tables count in 32 bits
LONGEST = 100_000_000  # bytes of a file of JSON; the limit of the safetensors library for a header
LONGEST_CONFIG = 4 << 20  # bytes of a configuration; Python parses this number in about 0.1 s, with the interpreter lock
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 80
_SHORT.maxother = 80
_SHORT.maxlong = 40


def shown(value: object) -> str:
    """Return a value of a file as a message may show it: short and printable, whatever it is."""
    return _SHORT.repr(value)


def named(name: str) -> str:
    """Return a name as a message may show it, without quotes."""
    return shown(name)[1:-1]


def parse(text: bytes, *, unique: bool = False) -> Any:
    """Parse JSON in UTF-8. Raises ``ValueError`` with a reason to show.

    With ``unique``, no object may have a key twice.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique if unique else None)
    except _Twice:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError("no UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # Python refuses to convert more digits than this
        raise ValueError("a number of more than 4300 digits") from None


class _Twice(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"{shown(next(n for n in names if names.count(n) > 1))} is there twice")
    return fields


class Fields:
    """A JSON object of file ``source``. Every getter raises ``CheckpointError`` for a value of the wrong type."""

    def __init__(self, source: Path | str, values: dict[str, Any]) -> None:
        self.source = str(source)
        self.values = values

    @classmethod
    def read(cls, path: Path, limit: int = LONGEST_CONFIG) -> Fields:
        """Return the object in the file at ``path``, which has at limit ``limit`` bytes."""
        try:
            raw = read_regular(path, limit)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
        try:
            values = parse(raw)
        except ValueError as error:
            raise CheckpointError(f"{path} is not valid JSON ({error}); download or save the checkpoint again") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a JSON {type(values).__name__}, not an object; save the checkpoint again")
        return cls(path, values)

    def has(self, key: str) -> bool:
        """Return whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def null(self, key: str) -> bool:
        """Return whether ``key`` is there and null, which may mean something else than its absence."""
        return key in self.values and self.values[key] is None

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key} is {shown(self.values.get(key))}, not {wanted}; correct the file")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return ``key`` as an integer of at least ``least``; if missing, ``default``, or an error without a default."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source} lacks {key}; add it or save the checkpoint again")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.wrong(key, f"an integer from {least} to {LARGEST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return ``key`` as a finite float; if missing, ``default``, or an error without a default."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source} lacks {key}; add it or save the checkpoint again")
            return default
        if not _finite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def number_within(self, key: str, default: float, low: float, high: float, *, above: bool = False) -> float:
        """Return ``key`` as a float from ``low`` to ``high``; if missing, ``default``.

        With ``above``, ``low`` itself is refused.
        """
        value = self.number(key, default)
        if not low <= value <= high or (above and value == low):
            raise self.wrong(key, f"a number {'above' if above else 'from'} {low:g} to {high:g}")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return ``key`` as a list of ``count`` positive numbers; it must be there."""
        value = self.values.get(key)
        numbers = value if isinstance(value, list) else []
        if len(numbers) != count or not all(_finite(n) and n > 0 for n in numbers):
            raise CheckpointError(f"{self.source}: {key} must be a list of {count} positive numbers; correct the file")
        return tuple(float(n) for n in numbers)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return ``key`` as token ids: an integer, a list of them, or null (none); if missing, ``default``."""
        if key not in self.values:
            return default
        value = self.values[key]
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i <= LARGEST for i in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(i for i in ids if i >= 0)

    def object(self, key: str) -> Fields | None:
        """Return ``key`` as an object of its own; None if it is missing, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(f"{self.source}: {key}", value)


def _finite(value: object) -> bool:
    """Return whether the value is a number that a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # raised for a huge integer
        return False

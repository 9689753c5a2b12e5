"""Typed reading of the JSON of a checkpoint: every wrong or missing value becomes one clear sentence.

Knows nothing of architectures. Standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blockwright.gpu.errors import CheckpointError


class Fields:
    """A JSON object of file ``source``. Every getter raises ``CheckpointError`` for a value of the wrong type."""

    def __init__(self, source: Path | str, values: dict[str, Any]) -> None:
        self.source = str(source)
        self.values = values

    @classmethod
    def read(cls, path: Path) -> Fields:
        """The object in the file at ``path``."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
            raise CheckpointError(f"{path} is not valid JSON{where}; download or save the checkpoint again") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a JSON {type(values).__name__}, not an object; save the checkpoint again")
        return cls(path, values)

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def null(self, key: str) -> bool:
        """Whether ``key`` is there and null, which may mean something else than its absence."""
        return key in self.values and self.values[key] is None

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key} is {self.values.get(key)!r}, not {wanted}; correct the file")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """``key`` as an integer of at least ``least``; a missing one is ``default``, or an error without a default."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source} lacks {key}; add it or save the checkpoint again")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """``key`` as a float; a missing one is ``default``, or an error without a default."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.source} lacks {key}; add it or save the checkpoint again")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return float(value)

    def number_within(self, key: str, default: float, low: float, high: float) -> float:
        """``key`` as a float from ``low`` to ``high``; a missing one is ``default``."""
        value = self.number(key, default)
        if not low <= value <= high:
            raise self.wrong(key, f"a number from {low:g} to {high:g}")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """``key`` as a list of ``count`` positive numbers; it must be there."""
        value = self.values.get(key)
        numbers = value if isinstance(value, list) else []
        if len(numbers) != count or not all(
            isinstance(n, int | float) and not isinstance(n, bool) and n > 0 for n in numbers
        ):
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
        """``key`` as token ids: an integer, a list of them, or null (none); a missing key is ``default``."""
        if key not in self.values:
            return default
        value = self.values[key]
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(i for i in ids if i >= 0)

    def object(self, key: str) -> Fields | None:
        """``key`` as an object of its own; None when missing, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(f"{self.source}: {key}", value)

"""The types of body fields: each checks a value, and describes itself in JSON Schema.

Every refusal is a 400 that names field, value and remedy. ``null`` never gets here: it equals an absent field. ``true`` is
not a number, nor is NaN or an infinity. A float without a fraction is an integer, for clients with a single number type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..checks import Body, shown, unicode_text
from ..errors import bad_request

Schema = dict[str, Any]


class FieldType(Protocol):
    def read(self, value: Any, name: str) -> Any:
        """Return the value as the server uses it. ``name``: the field's name, for the refusal."""

    def schema(self) -> Schema: ...


@runtime_checkable
class NestedFields(Protocol):
    """A field type whose values have fields of their own."""

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return the names of unknown fields in a value that has been read. ``null`` does not count as a field."""


@dataclass(frozen=True, slots=True)
class Flag:
    def read(self, value: Any, name: str) -> bool:
        if not isinstance(value, bool):
            raise bad_request(f"{name} is {shown(value)}; give true or false", name, "invalid_type")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer. ``minimum``: lower values count as this one. ``wrap``: values are taken modulo this, if it is not 0."""

    low: int
    high: int
    minimum: int | None = None
    wrap: int = 0

    def read(self, value: Any, name: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad_request(f"{name} is {shown(value)}; {self._remedy}", name, "invalid_type")
        if not self.low <= value <= self.high:
            raise bad_request(f"{name} is {shown(value)}; {self._remedy}", name)
        if self.wrap:
            return value % self.wrap
        return value if self.minimum is None else max(self.minimum, value)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    @property
    def _remedy(self) -> str:
        return f"give an integer from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number. ``above``: it must be greater than ``low``, not equal."""

    low: float
    high: float
    above: bool = False

    def read(self, value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_request(f"{name} is {shown(value)}; {self._remedy}", name, "invalid_type")
        if not self.low <= value <= self.high or (self.above and value == self.low):  # NaN fails every comparison
            raise bad_request(f"{name} is {shown(value)}; {self._remedy}", name)
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}

    @property
    def _remedy(self) -> str:
        bound = f"above {self.low:g} and at most {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"
        return f"give a number {bound}"


@dataclass(frozen=True, slots=True)
class Text:
    longest: int = 0  # characters; 0: no limit

    def read(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise bad_request(f"{name} is {shown(value)}; give a string", name, "invalid_type")
        if self.longest and len(value) > self.longest:
            raise bad_request(f"{name} has {len(value)} characters; give at most {self.longest}", name)
        return unicode_text(value, name)

    def schema(self) -> Schema:
        return {"type": "string", **({"maxLength": self.longest} if self.longest else {})}


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def read(self, value: Any, name: str) -> str:
        if value not in self.values or not isinstance(value, str):
            raise bad_request(f"{name} is {shown(value)}; give one of {', '.join(self.values)}", name)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of non-empty strings; with ``single`` also one string by itself."""

    what: str  # name of one string, for messages
    maximum: int
    longest: int
    single: bool = False

    def read(self, value: Any, name: str) -> tuple[str, ...]:
        texts = [value] if self.single and isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            form = "a string or a list of strings" if self.single else "a list of strings"
            raise bad_request(f"{name} is {shown(value)}; give {form}", name, "invalid_type")
        if len(texts) > self.maximum:
            raise bad_request(f"{name} has {len(texts)} strings; give at most {self.maximum}", name)
        for text in texts:
            if not 1 <= len(text) <= self.longest:
                raise bad_request(f"a {self.what} has {len(text)} characters; give 1 to {self.longest}", name)
        return tuple(unicode_text(text, name) for text in texts)

    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1, "maxLength": self.longest}
        texts = {"type": "array", "items": text, "maxItems": self.maximum}
        return {"anyOf": [text, texts]} if self.single else texts


def is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A list of token ids. The vocabulary is checked later, when the model is known."""

    minimum: int = 0
    maximum: int = 1 << 20

    def read(self, value: Any, name: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(is_token(token) for token in value):
            raise bad_request(f"{name} is {shown(value)}; give a list of token ids", name, "invalid_type")
        if not self.minimum <= len(value) <= self.maximum:
            raise bad_request(f"{name} has {len(value)} token ids; give {self.minimum} to {self.maximum}", name)
        return tuple(value)

    def schema(self) -> Schema:
        items = {"type": "integer", "minimum": 0}
        return {"type": "array", "items": items, "minItems": self.minimum, "maxItems": self.maximum}


@dataclass(frozen=True, slots=True)
class Biases:
    """An object of token ids (strings, as JSON requires of keys) and numbers."""

    limit: float
    maximum: int

    def read(self, value: Any, name: str) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise bad_request(f"{name} is {shown(value)}; give an object of token ids and numbers", name, "invalid_type")
        if len(value) > self.maximum:
            raise bad_request(f"{name} has {len(value)} entries; give at most {self.maximum}", name)
        number = Number(-self.limit, self.limit)
        pairs = []
        for key, bias in value.items():
            if not (key.isascii() and key.isdigit() and len(key) < 12):
                raise bad_request(f"{name} has the key {shown(key)}; give token ids as keys", name)
            pairs.append((int(key), number.read(bias, f"{name}.{key}")))
        return tuple(pairs)

    def schema(self) -> Schema:
        values = Number(-self.limit, self.limit).schema()
        names = {"pattern": "^[0-9]{1,11}$"}
        return {"type": "object", "propertyNames": names, "additionalProperties": values, "maxProperties": self.maximum}


@dataclass(frozen=True, slots=True)
class Mapping:
    """Any object."""

    def read(self, value: Any, name: str) -> Body:
        if not isinstance(value, dict):
            raise bad_request(f"{name} is {shown(value)}; give an object", name, "invalid_type")
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


MOST_PAIRS = 16  # of metadata
LONGEST_KEY, LONGEST_VALUE = 64, 512  # characters


@dataclass(frozen=True, slots=True)
class Metadata:
    """Pairs of short texts."""

    def read(self, value: Any, name: str) -> dict[str, str]:
        pairs = Mapping().read(value, name)
        if len(pairs) > MOST_PAIRS:
            raise bad_request(f"{name} has {len(pairs)} pairs; give at most {MOST_PAIRS}", name)
        for key, text in pairs.items():
            Text(LONGEST_KEY).read(key, name)
            Text(LONGEST_VALUE).read(text, f"{name}.{key[:LONGEST_KEY]}")
        return pairs

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE}}


@dataclass(frozen=True, slots=True)
class Anything:
    """A value that is accepted without effect."""

    def read(self, value: Any, name: str) -> Any:
        return value

    def schema(self) -> Schema:
        return {}


@dataclass(frozen=True, slots=True)
class Ignored:
    """A field that clients send by default and that has no effect here.

    Every one of its values is accepted, and reported as ignored unless it is one of ``neutral``.
    """

    values: tuple[str, ...]
    neutral: tuple[str, ...] = ()

    def read(self, value: Any, name: str) -> str:
        return OneOf(self.values).read(value, name)

    def schema(self) -> Schema:
        return OneOf(self.values).schema()


def equals_any(value: Any, values: Sequence[Any]) -> bool:
    """Return True if a value of the wire equals one of these: 1.0 equals 1, but true does not."""
    return any(type(value) in (type(one), float) and value == one for one in values)


@dataclass(frozen=True, slots=True)
class Only:
    """A field that is not served: accepted only with values that request nothing."""

    values: tuple[Any, ...] = ()
    remedy: str = "leave it out"

    def read(self, value: Any, name: str) -> Any:
        if not equals_any(value, self.values):
            message = f"{name} ({shown(value)}) is not supported by this server; {self.remedy}"
            raise bad_request(message, name, "unsupported_parameter")
        return value

    def schema(self) -> Schema:
        return {"enum": list(self.values)} if self.values else {"type": "null"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body."""

    name: str
    kind: FieldType
    text: str  # a sentence for the API reference
    required: bool = False
    default: Any = None  # for the API reference; None if it is not constant

    def schema(self) -> Schema:
        """Return the schema, which allows ``null`` unless the field is required."""
        made = self.kind.schema()
        if not self.required and made:
            made = _or_null(made)
        extra = {} if self.default is None else {"default": self.default}
        return {**made, "description": self.text, **extra}


@dataclass(frozen=True, slots=True)
class Record:
    """An object with declared fields, read as a dict of the given ones."""

    fields: tuple[Field, ...]

    def read(self, value: Any, name: str) -> dict[str, Any]:
        given = Mapping().read(value, name)
        return {f.name: f.kind.read(given[f.name], f"{name}.{f.name}") for f in self.fields if given.get(f.name) is not None}

    def unknown(self, value: Any, name: str) -> list[str]:
        known = {field.name for field in self.fields}
        return [f"{name}.{one}" for one, inner in value.items() if one not in known and inner is not None]

    def schema(self) -> Schema:
        return object_schema(self.fields)


def object_schema(fields: Sequence[Field]) -> Schema:
    required = [field.name for field in fields if field.required]
    made: Schema = {"type": "object", "properties": {field.name: field.schema() for field in fields}}
    return {**made, **({"required": required} if required else {})}


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        kind = {"type": [schema["type"], "null"]} if "type" in schema else {}
        return {**schema, **kind, "enum": [*schema["enum"], None]}
    kind = schema["type"]
    return schema if kind == "null" else {**schema, "type": [kind, "null"]}

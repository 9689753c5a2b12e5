"""The types of JSON that a schema admits, as far as its keywords say it plainly. What they do not say is admitted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

STRING = "string"
EVERY = frozenset({STRING, "number", "integer", "boolean", "null", "object", "array"})
MOST_STEPS, DEEPEST = 1000, 50  # schemas that are looked at for one answer, one in the other


def type_of(value: Any) -> str:
    """Return the type of a JSON value; whole numbers are integers."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return STRING if isinstance(value, str) else {type(None): "null", dict: "object", list: "array"}[type(value)]


def types_of(schema: Any, root: Any) -> frozenset[str]:
    """Return the types that values of a schema may have. ``root``: the schema that references point into."""
    return _Types(root).of(schema, 0)


def target_of(reference: Any, root: Any) -> Any:
    """Return the schema that a local reference points at, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if reference in ("#",) or reference.startswith("#/") else None


class ToolTypes:
    """The types that the arguments of tools may have. ``schemas``: by name of the tool, what its arguments are."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._found: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def names(self) -> Collection[str] | None:
        """The names of the tools; None: they are not known."""
        return self._schemas.keys() or None

    def of(self, tool: str, argument: str) -> frozenset[str]:
        """Return the types of an argument."""
        schema = self._schemas.get(tool)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or argument not in properties:
            return EVERY
        if (tool, argument) not in self._found:
            self._found[tool, argument] = types_of(properties[argument], schema)
        return self._found[tool, argument]


class _Types:
    """The types of one answer. It looks at a bounded number of schemas, whatever refers to what."""

    def __init__(self, root: Any) -> None:
        self._root, self._left = root, MOST_STEPS

    def of(self, schema: Any, depth: int) -> frozenset[str]:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or depth > DEEPEST:
            return EVERY if schema is not False else frozenset()
        found = _declared(schema.get("type"))
        if isinstance(values := schema.get("enum"), list):
            found &= frozenset(map(type_of, values))
        if "const" in schema:
            found &= {type_of(schema["const"])}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(inner := schema.get(keyword), list):
                found &= frozenset().union(*(self.of(one, depth + 1) for one in inner))
        if isinstance(inner := schema.get("allOf"), list):
            for one in inner:
                found &= self.of(one, depth + 1)
        if (target := target_of(schema.get("$ref"), self._root)) is not None:
            found &= self.of(target, depth + 1)
        return found


def _declared(given: Any) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list):
        return EVERY
    found = frozenset(name for name in names if isinstance(name, str)) & EVERY
    return found | {"integer"} if "number" in found else found

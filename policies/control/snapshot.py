"""Snapshots of the controller's state machine: its objects as rows of plain data, and back.

The parts of the machine point at one another, so a snapshot lists every object once, and objects name each other by their
rows. What never changes (routes, applications, reports) is listed once for equal contents, wherever it came from, so that
equal states have equal snapshots. Only classes of the policies are made from a snapshot.

A value is plain as it is (None, numbers, text, bytes), ``[row]``, ``[enumeration, value]`` or ``["()", item, ...]``.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from ..cluster import demand, parameter_sources, provisioning, relocation, restart_policy, traffic, worker_size
from ..model import chain
from ..plain import Plain
from . import (
    additions,
    claims,
    copies,
    distribution,
    dropped_group,
    events,
    holdings,
    on_demand,
    parameter_drops,
    placement,
    reconcile,
    relocations,
    residency,
    routes,
    scaling,
    serving,
    traffic_counts,
    variants,
    worker_facts,
    worker_record,
)

T = TypeVar("T")
_BARE = frozenset((type(None), bool, int, float, str, bytes))
_CONTAINERS: dict[type, str] = {
    tuple: "()", list: "[]", set: "<>", frozenset: "<=>", dict: "{}", deque: "deque", Counter: "count", defaultdict: "sum",
}  # fmt: skip
_MODULES = (
    demand, parameter_sources, provisioning, relocation, restart_policy, traffic, worker_size, chain, additions, claims,
    copies, distribution, dropped_group, events, holdings, on_demand, parameter_drops, placement, reconcile,
    relocations, residency, routes, scaling, serving,
    traffic_counts, variants, worker_facts, worker_record,
)  # fmt: skip
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for module in _MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__.startswith(__name__.rpartition(".control.")[0])
}


def take_apart(root: object) -> dict[str, Plain]:
    """Return the snapshot of ``root`` and all that it reaches, the root as its first row."""
    return _Snapshot(root).plain


def put_together(snapshot: dict[str, Plain], like: T) -> T:
    """Return the root of a snapshot. ``like``: an object of its class. Raises ValueError or KeyError for other classes."""
    here = take_apart(like)["kinds"]
    for name, attributes in snapshot["kinds"].items():
        known = _KINDS.get(name, type(like))
        expected = _attributes_of(known) if is_dataclass(known) else here.get(name, ())
        if tuple(attributes) != tuple(expected):
            raise ValueError(f"a {name} has {', '.join(expected)}, and there it has {', '.join(attributes)}")
    return _Restored(snapshot, type(like)).root  # type: ignore[no-any-return]


def of_this_release(snapshot: dict[str, Plain], like: object) -> dict[str, Plain]:
    """Return a snapshot of a neighbouring release as one of this.

    What a class has no more is left out. What it has since is its default, or where it has none what ``like``, a new object
    of the root's class, has there: nothing, or nothing yet. Raises ValueError where that is not empty.
    """
    here = _Snapshot(like)
    kinds: dict[str, Plain] = {}
    rows: list[Plain] = [*snapshot["rows"]]
    columns: dict[str, list[int | Any]] = {}
    for name, attributes in snapshot["kinds"].items():
        known = here.found.get(name)
        kind = type(known) if known is not None else _KINDS.get(name)
        expected = [*attributes]
        if kind is not None:
            expected = [*(_attributes_of(kind) if is_dataclass(kind) else vars(known))]
        kinds[name] = expected
        if expected != [*attributes]:
            places = {attribute: 1 + place for place, attribute in enumerate(attributes)}
            columns[name] = [places.get(one) or _Absent(name, one, kind, known) for one in expected]
    for number, row in enumerate(snapshot["rows"]):
        if row[0] in columns:
            found = [one.plain(rows) if isinstance(one, _Absent) else row[one] for one in columns[row[0]]]
            rows[number] = [row[0], *found]
    return {"kinds": kinds, "rows": rows}


def copy_of(root: T) -> T:
    """Return an independent copy of ``root``, which shares what never changes."""
    return _Restored(_Snapshot(root, lambda value: ("=", value)).plain, type(root)).root  # type: ignore[no-any-return]


@cache
def _never_changes(kind: type) -> bool:
    return issubclass(kind, Enum) or bool(is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _attributes_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


class _Absent:
    """An attribute that a class has and that a snapshot of another release lacks."""

    def __init__(self, kind: str, name: str, of: Any, like: object) -> None:
        value: Any = getattr(like, name, MISSING)
        for field in (one for one in (fields(of) if is_dataclass(of) else ()) if one.name == name):
            make: Any = field.default_factory
            value = field.default if make is MISSING else make()
        empty = type(value) in _CONTAINERS and not value
        if not (empty or type(value) in _BARE or isinstance(value, Enum)):
            raise ValueError(f"a {kind} has {name}, which a snapshot of another release lacks")
        self._value, self._shared = value, type(value) in (tuple, frozenset) or _never_changes(of)

    def plain(self, rows: list[Plain]) -> Plain:
        """Return it as a value of a row. ``rows``: an object of its own is added to them."""
        kind = type(self._value)
        if kind in _BARE:
            return self._value
        if isinstance(self._value, Enum):
            return [kind.__name__, self._value.value]
        contents = [_CONTAINERS[kind], *([self._value.maxlen] if isinstance(self._value, deque) else [])]
        if self._shared:
            return contents
        rows.append(contents)
        return [len(rows) - 1]


class _Snapshot:
    """A snapshot in the making. ``plain``: the snapshot. ``unchanging``: writes what never changes, otherwise than here.
    found: one object of each class.
    """

    def __init__(self, root: object, unchanging: Callable[[Any], Plain] | None = None) -> None:
        self._unchanging = unchanging or self._value
        self._rows: list[Plain] = []
        self._of_objects: dict[int, int] = {}  # id of an object -> its row
        self._of_values: dict[Plain, int] = {}  # contents of what never changes -> its row
        self._waiting: deque[tuple[int, Any]] = deque()  # objects whose row is not written yet
        self._kinds: dict[str, tuple[str, ...]] = {}  # class -> its attributes
        self.found: dict[str, Any] = {}
        self._put(root)
        while self._waiting:  # not by recursion: objects form long chains
            row, value = self._waiting.popleft()
            self._rows[row] = self._contents(value, self._put)
        self.plain: dict[str, Plain] = {"kinds": self._kinds, "rows": self._rows}

    def _put(self, value: Any) -> Plain:
        """Return a value of an object that may change."""
        kind: type = type(value)
        if kind in _BARE:
            return value
        if kind is tuple or kind is frozenset:
            return self._contents(value, self._put)
        if _never_changes(kind):
            return self._unchanging(value)
        if (row := self._of_objects.get(id(value))) is None:
            row = self._of_objects[id(value)] = len(self._rows)
            self._rows.append(None)
            self._waiting.append((row, value))
        return (row,)

    def _value(self, value: Any) -> Plain:
        """Return a part of what never changes; its lists and dicts do not change either."""
        kind: type = type(value)
        if kind in _BARE:
            return value
        if kind in _CONTAINERS:
            return self._contents(value, self._value)
        if issubclass(kind, Enum):
            return (kind.__name__, value.value)
        if (row := self._of_objects.get(id(value))) is None:
            contents = self._contents(value, self._value)
            row = self._of_objects[id(value)] = self._of_values.setdefault(contents, len(self._rows))
            if row == len(self._rows):
                self._rows.append(contents)
        return (row,)

    def _contents(self, value: Any, put: Callable[[Any], Plain]) -> Plain:
        kind: type = type(value)
        if (tag := _CONTAINERS.get(kind)) is None:
            if (names := self._kinds.get(kind.__name__)) is None:
                names = self._kinds[kind.__name__] = _attributes_of(kind) if is_dataclass(kind) else tuple(vars(value))
                self.found[kind.__name__] = value
            return (kind.__name__, *[put(getattr(value, name)) for name in names])
        if isinstance(value, dict):
            return (tag, *[put(part) for item in value.items() for part in item])
        if isinstance(value, deque):
            return (tag, value.maxlen, *map(put, value))
        return (tag, *map(put, sorted(value) if isinstance(value, set | frozenset) else value))


class _Restored:
    """The objects of a snapshot. ``root``: the first one."""

    def __init__(self, snapshot: dict[str, Plain], root: type) -> None:
        self._rows: list[Plain] = snapshot["rows"]
        self._kinds = _KINDS | {root.__name__: root}
        self._attributes: dict[str, list[str]] = snapshot["kinds"]
        self._made: list[Any] = [self._empty(row) for row in self._rows]
        for row, made in [one for one in zip(self._rows, self._made, strict=True) if one[1] is not None]:
            self._fill(made, row)
        self.root = self._get([0])

    def _empty(self, row: Plain) -> Any:
        """Return the object of a row, to be filled; None for what never changes, which is made at once."""
        if row[0] == "deque":
            return deque(maxlen=row[1])
        if row[0] == "sum":
            return defaultdict(float)
        kind: Any = Counter if row[0] == "count" else _TAGGED.get(row[0]) or self._kinds[row[0]]
        return None if _never_changes(kind) else kind.__new__(kind)

    def _fill(self, made: Any, row: Plain) -> None:
        match made:
            case list() | deque():
                made.extend(map(self._get, row[1 + isinstance(made, deque) :]))
            case set():
                made.update(map(self._get, row[1:]))
            case dict():
                dict.update(made, self._pairs(row))  # a Counter would count the pairs
            case _:
                for name, value in zip(self._attributes[row[0]], row[1:], strict=True):
                    setattr(made, name, self._get(value))

    def _pairs(self, row: Plain) -> Iterator[tuple[Any, Any]]:
        return zip(map(self._get, row[1::2]), map(self._get, row[2::2]), strict=True)

    def _get(self, value: Plain) -> Any:
        if type(value) in _BARE:
            return value
        tag, *rest = value
        if not rest and type(tag) is int:
            if self._made[tag] is None:
                self._made[tag] = self._frozen(self._rows[tag])
            return self._made[tag]
        if tag == "=":
            return rest[0]
        if (kind := _TAGGED.get(tag)) is dict:
            return dict(self._pairs(value))
        return kind(map(self._get, rest)) if kind is not None else self._kinds[tag](*rest)

    def _frozen(self, row: Plain) -> Any:
        values = zip(self._attributes[row[0]], row[1:], strict=True)
        return self._kinds[row[0]](**{name: self._get(value) for name, value in values})


_TAGGED: dict[str, type] = {tag: kind for kind, tag in _CONTAINERS.items() if tag in ("()", "[]", "<>", "<=>", "{}")}

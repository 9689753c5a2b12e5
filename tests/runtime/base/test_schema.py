"""A dataclass of this package that changed is read by the releases before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from blockwright.runtime.base import codec, schema
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack, unpack
from blockwright.runtime.base.decoding import decode, decoder
from blockwright.runtime.base.errors import DecodeError
from blockwright.tests.claims import claim


@dataclass(frozen=True, slots=True)
class Inner:
    x: int


@pytest.fixture
def release(monkeypatch):
    """Makes a class that a release has recorded, as that release has it: ``release(record, fields)``."""

    def make(record: dict[str, Any] | None, source: str) -> type:
        space: dict[str, Any] = {
            "__name__": "blockwright.tests.reports",
            "dataclass": dataclass,
            "field": field,
            "Inner": Inner,
            "np": np,
        }
        source = f"@dataclass(frozen=True, slots=True)\nclass Report:\n    {source}"
        exec(compile(source, "a release", "exec", dont_inherit=True), space)
        kind: type = space["Report"]
        with monkeypatch.context() as patch:
            patch.setattr(schema, "records", lambda: {"tests.Report": record} if record is not None else {})
            schema.wire_form(kind)  # remembered
        return kind

    return make


def sent(value: Any) -> Any:
    sink = Sink()
    return unpack(pack(encode(value, sink)), [memoryview(buffer) for buffer in sink.buffers])


FIRST = "worker: str; done: int"
RECORD = {"tag": 77, "places": {"worker": "str", "done": "int"}}


@claim("Neighbouring releases speak: an added field has a default, a removed one a filler", of="actor-runtime")
def test_an_added_field_is_dropped_by_the_older_and_filled_by_the_newer(release):
    old, new = release(RECORD, FIRST), release(RECORD, FIRST + "; lag: float = 1.5; inner: Inner = Inner(3)")
    assert sent(new("w", 1, 2.0)) == [77, "w", 1, {"lag": 2.0}]
    assert decode(old, sent(new("w", 1, 2.0))) == old("w", 1)
    assert decode(new, sent(old("w", 1))) == new("w", 1, 1.5)
    for value in (new("w", 1), new("w", 1, 2.0), new("w", 1, 1.5, Inner(4)), new("w", 1, 2.0, Inner(4))):
        assert decode(new, sent(value)) == value


def test_a_default_takes_no_room(release):
    new = release(RECORD, FIRST + "; lag: float = 1.5; seen: list[int] = field(default_factory=list)")
    assert sent(new("w", 1)) == [77, "w", 1]
    assert sent(new("w", 1, 1.5, [2])) == [77, "w", 1, {"seen": [2]}]


def test_a_removed_field_leaves_its_filler_to_those_who_read_it(release):
    new = release(RECORD | {"fillers": {"worker": "nobody"}}, "done: int")
    old = release(RECORD, FIRST)
    assert decode(old, sent(new(4))) == old("nobody", 4)
    assert decode(new, sent(old("w", 4))) == new(4)
    assert decode(new, sent(new(4))) == new(4)


def test_a_removed_field_without_a_filler_is_named(release):
    with pytest.raises(TypeError, match=r"Report lost worker, which other releases read; give it a filler"):
        release(RECORD, "done: int")


def test_a_field_that_an_earlier_release_added_may_go(release):
    later = release(RECORD | {"named": {"lag": "float"}}, FIRST)
    had = release(RECORD, FIRST + "; lag: float = 0.0")
    assert decode(had, sent(later("w", 1))) == had("w", 1)
    assert decode(later, sent(had("w", 1, 9.0))) == later("w", 1)


def test_fields_keep_their_places_whatever_their_order_in_the_class(release):
    moved = release(RECORD, "done: int; worker: str; lag: float = 0.0")
    turned = release(RECORD, "done: int; worker: str")
    old = release(RECORD, FIRST)
    assert decode(moved, sent(old("w", 1))) == moved(1, "w")
    assert decode(turned, sent(old("w", 1))) == turned(1, "w")
    assert decode(old, sent(moved(1, "w", 2.0))) == decode(old, sent(turned(1, "w"))) == old("w", 1)


def test_two_releases_with_different_additions_do_not_mistake_them(release):
    """Both have one field more, at the same place."""
    one, other = release(RECORD, FIRST + "; a: int = 0"), release(RECORD, FIRST + "; b: int = 0")
    assert decode(other, sent(one("w", 1, 5))) == other("w", 1, 0)
    both = release(RECORD, FIRST + "; b: int = 0; a: int = 0")
    assert decode(both, sent(one("w", 1, 5))) == both("w", 1, 0, 5)


def test_large_parts_and_unions_of_added_fields(release):
    new = release(RECORD, FIRST + "; data: np.ndarray | None = None; other: Inner | int = 0")
    came = decode(new, sent(new("w", 1, np.arange(1000), Inner(2))))
    assert came.other == Inner(2)
    assert (came.data == np.arange(1000)).all()


@pytest.mark.parametrize(
    "data",
    [
        [77, "w"],
        [77, "w", 1, {"lag": 2.0}, {}],
        [77, "w", 1, 2.0],
        [77, "w", 1, {3: 4}],
        [78, "w", 1],
        [77, "w", "1"],
        [77, "w", 1, {"lag": "x"}],
        {"lag": 1.0},
        [],
        None,
    ],
)
def test_what_no_release_sends_is_refused(release, data):
    with pytest.raises(DecodeError, match="Report"):
        decode(release(RECORD, FIRST + "; lag: float = 0.0"), data)
    if not (type(data) is list and data[-1:] == [{"lag": "x"}]):  # nobody there reads it
        with pytest.raises(DecodeError, match="Report"):
            decode(release(RECORD, FIRST), data)


def test_a_type_of_a_program_is_known_by_its_fields(release):
    """No release has it: whoever has other fields has another type."""
    old, new = release(None, FIRST), release(None, FIRST + "; lag: float = 0.0")
    assert schema.schema_tag(old) != schema.schema_tag(new)
    with pytest.raises(DecodeError):
        decode(old, sent(new("w", 1)))
    with pytest.raises(DecodeError):
        decode(old, [*sent(old("w", 1)), {"lag": 1.0}])
    assert schema.record_name(type("Mine", (), {"__module__": "app.main"})) == ""


def test_a_type_that_did_not_change_keeps_the_short_way(release):
    """The same getter and plan as a type that no release has recorded."""
    kind = release(RECORD, FIRST)
    assert type(schema.wire_values(kind)) is attrgetter
    assert decoder(kind).__code__ is decoder(Inner).__code__
    assert codec.encode(kind("w", 1), Sink()) == [77, "w", 1]

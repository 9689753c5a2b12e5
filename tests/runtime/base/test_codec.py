from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.actors.worker import messages as worker_messages
from blockwright.policies.model import chain as chain_types
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.plan import sweep_plan as plan_types
from blockwright.policies.plan.sweep_plan import SetPages, SweepPlan, WriteTokens
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import MAX_CONTAINERS, MAX_ITEMS, encode, pack, unpack
from blockwright.runtime.base.decoding import decode
from blockwright.runtime.base.errors import DecodeError, EncodeError
from blockwright.runtime.base.schema import schema_tag
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    number: int
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Other:
    number: int


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str
    ratio: float
    flag: bool
    data: bytes
    leaf: Leaf | None
    either: Leaf | Other | None
    level: Level
    pair: tuple[int, str]
    many: tuple[int, ...]
    table: dict[str, list[Leaf]]
    numbers: dict[int, float]
    children: list[Tree] = field(default_factory=list)
    anything: Any = None


def travel(annotation: Any, value: Any) -> Any:
    sink = Sink()
    body = pack(encode(value, sink))
    return decode(annotation, unpack(body, [memoryview(b).cast("B") for b in sink.buffers]))


integers = st.integers(-(2**63), 2**64 - 1)
leaves = st.builds(Leaf, integers, st.sampled_from(Colour))
plain = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def trees(children: st.SearchStrategy[list[Tree]]) -> st.SearchStrategy[Tree]:
    return st.builds(
        Tree,
        name=st.text(max_size=8),
        ratio=st.floats(allow_nan=False),
        flag=st.booleans(),
        data=st.binary(max_size=600),
        leaf=st.none() | leaves,
        either=st.none() | leaves | st.builds(Other, integers),
        level=st.sampled_from(Level),
        pair=st.tuples(integers, st.text(max_size=3)),
        many=st.lists(integers, max_size=4).map(tuple),
        table=st.dictionaries(st.text(max_size=3), st.lists(leaves, max_size=2), max_size=2),
        numbers=st.dictionaries(integers, st.floats(allow_nan=False), max_size=3),
        children=children,
        anything=plain,
    )


@claim("Arguments and answers are checked against annotations, without pickle", of="actor-runtime")
@examples(150)
@given(st.recursive(trees(st.just([])), lambda inner: trees(st.lists(inner, max_size=2)), max_leaves=4))
def test_round_trip(tree):
    assert travel(Tree, tree) == tree


def test_chains_and_plans_travel():
    component = Component(b"c" * 16, Kind.ATTENTION, 10, 4, 4, KvLayout(2, 4, "float32", 16))
    chain = Chain("demo", (Block((component, dataclasses.replace(component, kind=Kind.MLP, kv=None))),), 100)
    assert travel(Chain, chain) == chain
    route = Route("demo@w0", 1, "demo", (Hop("w0", 0, 2),))
    assert travel(list[Route], [route]) == [route]
    plan = SweepPlan(1, edits=[WriteTokens(0, 1, [2]), SetPages(0, 1, 2, [3])], reasons={"full": 1})
    assert travel(SweepPlan, plan) == plan


@pytest.mark.parametrize("module", [worker_messages, chain_types, plan_types])
def test_every_message_of_the_serving_system_has_types_that_can_travel(module):
    kinds = [k for k in vars(module).values() if isinstance(k, type) and dataclasses.is_dataclass(k)]
    assert kinds
    for kind in kinds:
        with pytest.raises(DecodeError):  # not TypeError: the plan of each field was compiled before the value was refused
            decode(kind, 0)


@claim("Arguments and answers are checked against annotations, without pickle", of="actor-runtime")
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "x"),
        (int, True),
        (int, 1.5),
        (bool, 1),
        (str, b"x"),
        (bytes, "x"),
        (float, "1"),
        (None, 0),
        (list[int], [1, "x"]),
        (list[int], {"a": 1}),
        (list[Leaf], [Other(1)]),
        (tuple[int, str], [1]),
        (tuple[int, ...], ["x"]),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"a": "b"}),
        (Colour, "green"),
        (Colour, []),
        (Leaf, Other(1)),
        (Leaf, [1, "red"]),
        (Leaf, None),
        (Leaf | None, 5),
        (Leaf | Other, [schema_tag(Leaf)]),
        (Leaf | Other, [1, 2]),
        (Leaf | Other, []),
        (np.ndarray, [1, 2]),
        (int | str, 1.5),
    ],
)
def test_wrong_types_are_refused(annotation, value):
    with pytest.raises(DecodeError):
        travel(annotation, value)


def test_an_error_names_the_field():
    data = unpack(pack(encode(Leaf("x", Colour.RED), Sink())))  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match=r"Leaf\.number: expected int, got str"):
        decode(Leaf, data)


def test_a_dataclass_that_refuses_its_values_is_a_decode_error():
    @dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError(f"n is {self.n}")

    good = encode(Positive(1), Sink())
    with pytest.raises(DecodeError, match="n is -1"):
        decode(Positive, [good[0], -1])


def test_two_versions_of_a_type_are_not_mistaken_for_each_other():
    @dataclass
    class Leaf:
        number: int
        colour: str
        weight: float = 0.0

    with pytest.raises(DecodeError):
        travel(globals()["Leaf"], Leaf(1, "red"))


@pytest.mark.parametrize("value", [object(), {1, 2}, {(1, 2): 3}, lambda: 0, np.array([object()]), np.int64(3), 2**70])
def test_what_cannot_travel_is_named_at_the_sender(value):
    with pytest.raises(EncodeError):
        pack(encode(value, Sink()))


@pytest.mark.parametrize("annotation", [set[int], object, Leaf | list[int], Colour | str, list[object], Sink])
def test_annotations_that_cannot_travel_are_refused(annotation):
    with pytest.raises(TypeError):
        travel(annotation, [1])


@given(st.binary(max_size=300))
def test_garbage_bytes_decode_or_raise_decode_error(data):
    for annotation in (Tree, Any):
        with contextlib.suppress(DecodeError):
            decode(annotation, unpack(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000 + b"\xc0",  # depth
        b"\xdd\x7f\xff\xff\xff",  # 2^31 items announced
        b"\xdf\x7f\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big") + b"\xc0" * (MAX_ITEMS + 1),
        b"\xc1",
        b"\xc0\xc0",  # trailing bytes
        b"",
        b"\x81\x90\xc0",  # a list as a key
        b"\xa2\xff\xfe",  # not UTF-8
        msgpack.packb(msgpack.ExtType(7, b"x")),
        msgpack.packb(msgpack.ExtType(1, b"\x00\x00")),  # a buffer that did not come
    ],
)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(DecodeError):
        unpack(data)


def test_a_cyclic_list_is_refused():
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(EncodeError, match="holds itself"):
        encode([cycle], Sink())


def test_nesting_arrives_or_is_refused_at_the_sender():
    """How deep it may be is the interpreter's: one frame for a level, or two."""
    for depth in (400, 600, 900, 1100):
        with contextlib.suppress(EncodeError):
            assert unpack(pack(encode(nested(depth), Sink()))) == nested(depth)
            continue
        assert depth > 400
    with pytest.raises(EncodeError):
        pack(encode(nested(5000), Sink()))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_what_the_receiver_would_refuse_is_refused_at_the_sender():
    for value in ([[]] * (MAX_CONTAINERS + 5), [{} for _ in range(MAX_CONTAINERS + 5)], [[1] * (MAX_ITEMS // 2 + 5)] * 2):
        with pytest.raises(EncodeError, match="lists and dicts"):
            pack(value)


def test_ints_pass_for_floats_and_only_so():
    assert travel(list[float], [1, 2.5]) == [1.0, 2.5]
    assert type(travel(float, 3)) is float
    assert type(travel(int | float, 3)) is int


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd" + (MAX_CONTAINERS + 5).to_bytes(4, "big") + b"\x90" * (MAX_CONTAINERS + 5),
        b"\xdd" + (MAX_CONTAINERS + 5).to_bytes(4, "big") + b"\x80" * (MAX_CONTAINERS + 5),
        b"\xdd" + (MAX_CONTAINERS + 5).to_bytes(4, "big") + b"\xdc\x00\x00" * (MAX_CONTAINERS + 5),
        b"\x92" + (b"\xdd" + (MAX_ITEMS // 2 + 5).to_bytes(4, "big") + b"\xa1a" * (MAX_ITEMS // 2 + 5)) * 2,
    ],
)
def test_the_objects_of_a_message_are_bounded_not_only_its_bytes(body):
    with pytest.raises(DecodeError, match="lists and dicts"):
        unpack(body)


@pytest.mark.parametrize(
    "value", [[[1, 2]] * 50_000, list(range(200, 300)) * 5000, {"a": [bytes(range(128, 160))] * 20_000}]
)
def test_large_messages_within_the_bounds_pass(value):
    assert unpack(pack(value)) == value

from __future__ import annotations

from dataclasses import dataclass

import pytest

from blockwright.runtime import Actor, DecodeError, Node, endpoint
from blockwright.runtime.base.schema import schema_tag


def test_endpoints_are_collected_and_inherited():
    class Base(Actor):
        @endpoint
        async def one(self) -> None: ...

        @endpoint(urgent=True)
        async def two(self, x: int) -> None: ...

        async def private(self) -> None: ...

    class Derived(Base):
        async def one(self) -> None: ...  # overridden without the decorator

        @endpoint(concurrent=True)
        async def three(self) -> None: ...

    assert set(Base.endpoints) == {"one", "two"}
    assert set(Derived.endpoints) == {"two", "three"}
    assert Derived.endpoints["two"].urgent
    assert Derived.endpoints["three"].concurrent


def declare(source: str) -> None:
    exec(f"class Thing(Actor):\n    @endpoint\n    {source}\n", {"Actor": Actor, "endpoint": endpoint})


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def f(self) -> None: ...", "async def"),
        ("async def f(self, x) -> None: ...", "annotate"),
        ("async def f(self, *x: int) -> None: ...", "list parameters"),
        ("async def f(self, **x: int) -> None: ...", "list parameters"),
        ("async def f(self, timeout: float) -> None: ...", "reserved"),
        ("async def f(self, returns: int) -> None: ...", "reserved"),
        ("async def name(self) -> None: ...", "reserved"),
        ("async def _f(self) -> None: ...", "reserved"),
    ],
)
def test_declarations_that_cannot_work_are_refused(source, complaint):
    with pytest.raises(TypeError, match=complaint):
        declare(source)


def test_urgent_and_concurrent_exclude_each_other():
    with pytest.raises(TypeError, match="does not wait"):

        @endpoint(urgent=True, concurrent=True)
        async def f(self: Actor) -> None: ...


async def test_types_that_cannot_travel_are_refused_at_spawn():
    class Bad(Actor):
        @endpoint
        async def f(self, x: set[int]) -> None: ...

    node = Node("n", listen=False)
    await node.start()
    with pytest.raises(TypeError, match=r"f: annotation set\[int\]"):
        await node.spawn(Bad(), name="bad")
    await node.stop()


@dataclass
class Point:
    x: int


class Shapes(Actor):
    @endpoint
    async def move(self, point: Point, by: int = 1, *, label: str = "") -> Point:
        return Point(point.x + by)


def test_arguments_are_bound_and_checked():
    move = Shapes.endpoints["move"]
    tagged = [schema_tag(Point), 3]
    assert move.decode_arguments([tagged], {}) == {"point": Point(3)}
    assert move.decode_arguments([tagged, 2], {"label": "a"}) == {"point": Point(3), "by": 2, "label": "a"}
    for args, kwargs, complaint in [
        ([], {}, "needs point"),
        ([tagged, 1, "a", 2], {}, "takes 3 arguments"),
        ([tagged], {"point": tagged}, "no .further. parameter 'point'"),
        ([tagged], {"colour": 1}, "no .further. parameter 'colour'"),
        ([tagged], {1: 1}, "no .further. parameter '1'"),
        ([tagged, "x"], {}, r"move\(by\): expected int, got str"),
        ([5], {}, r"move\(point\): expected Point"),
    ]:
        with pytest.raises(DecodeError, match=complaint):
            move.decode_arguments(args, kwargs)
    assert move.returns is Point

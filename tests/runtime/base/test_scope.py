from __future__ import annotations

import pytest

from blockwright.runtime import Actor, current_traceparent, endpoint, trace
from blockwright.runtime.base.scope import format_traceparent, new_span, new_trace, parse_traceparent

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the specification's example


class Hop(Actor):
    @endpoint
    async def seen(self) -> str:
        return current_traceparent()

    @endpoint(concurrent=True)
    async def further(self, address: str) -> list[str]:
        return [current_traceparent(), await self.node.ref(address).seen()]


def test_text_and_bytes():
    assert format_traceparent(parse_traceparent(GIVEN)) == GIVEN
    made = new_trace()
    assert parse_traceparent(format_traceparent(made)) == made
    assert new_span(made)[:16] == made[:16]
    assert new_span(made) != made


@pytest.mark.parametrize(
    "text",
    [
        "",
        GIVEN.replace("00-0", "01-0"),
        GIVEN.upper(),
        GIVEN[:-1],
        GIVEN + "-00",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
)
def test_what_is_no_traceparent_is_refused(text):
    with pytest.raises(ValueError, match="no traceparent"):
        parse_traceparent(text)


async def test_a_trace_goes_along_with_a_new_span_each_hop(sides):
    ref = await sides.spawn(Hop(), "one")
    await sides.spawn(Hop(), "two")
    with trace(GIVEN) as begun:
        assert begun == current_traceparent() == GIVEN
        outer, inner = await ref.further(f"{sides.callee.name}/two")
    assert outer[:36] == inner[:36] == GIVEN[:36]
    assert outer[-2:] == inner[-2:] == "01"
    assert len({GIVEN, outer, inner}) == 3
    assert current_traceparent() == ""


async def test_a_trace_begins_where_it_is_asked_for(sides):
    ref = await sides.spawn(Hop(), "one")
    await sides.spawn(Hop(), "two")
    outer, inner = await ref.further(f"{sides.callee.name}/two")
    assert outer[:36] == inner[:36]
    assert await ref.seen() != await ref.seen()
    with trace() as begun:
        assert (await ref.seen())[:36] == begun[:36]

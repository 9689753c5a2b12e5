"""Groups by what the pools of their workers say."""

from __future__ import annotations

from blockwright.policies.overload.demand import DemandReading
from blockwright.policies.overload.drop_plan import GroupMember, ParameterGroup
from blockwright.policies.overload.group_reading import as_packed, group_readings
from blockwright.policies.overload.pool_reading import PoolReading

from .clusters import chain

CHAIN = chain(2)
END = len(CHAIN)
PAIR = ParameterGroup("m", (GroupMember("w0", 0, 3, frozenset(range(3)), 0), GroupMember("w1", 3, END, frozenset({3}), 0)))
ALONE = ParameterGroup("m", (GroupMember("w2", 0, END, frozenset(range(END)), 0),))


def pool(pages: int, used: int = 0, head: int = 0, waiting: int = 0, parameters: int = 0) -> PoolReading:
    return PoolReading(budget=0, parameters=parameters, kv=0, cached=0, pages=pages, used=used, head=head, waiting=waiting)


def test_a_pipeline_is_read_as_one_instance() -> None:
    said = {"w0": pool(20, 10, head=2, waiting=5), "w1": pool(10, 9), "w2": pool(8, 1)}
    assert group_readings([PAIR, ALONE], said) == {
        PAIR.name: DemandReading(used=9, total=10, head=2, waiting=5),
        "w2": DemandReading(used=1, total=8),
    }


def test_of_a_group_that_has_not_answered_in_full_or_does_not_serve_nothing_is_said() -> None:
    assert group_readings([PAIR], {"w0": pool(20)}) == {}
    assert group_readings([PAIR], {"w0": pool(20), "w1": pool(0)}) == {}
    assert group_readings([], {"w0": pool(20)}) == {}


def test_parameters_take_what_they_take_in_the_memory_of_the_widest_worker() -> None:
    raw = sum(component.nbytes for component in CHAIN)
    held = [("w2", range(END)), ("w3", range(END)), ("w4", range(END)), ("w5", ())]
    said = {"w2": pool(1, parameters=raw), "w3": pool(1, parameters=2 * raw), "w5": pool(1, parameters=99)}
    assert [one.nbytes for one in as_packed(CHAIN, held, said)] == [2 * one.nbytes for one in CHAIN]
    assert as_packed(CHAIN, held, {}) == CHAIN, "nobody has said"

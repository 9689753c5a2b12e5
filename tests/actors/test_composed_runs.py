"""Runs on the device: each is composed once, and anew after one of its components was forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.actors.worker.composed_runs import ComposedRuns
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.runs import LocalRoute, Run


class Recorder:
    """An executor that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *arguments, **named: self.asked.append((name, *arguments, *named.values())) or ()

    def do(self, operation: Callable[[Any], object]) -> None:
        operation(self)


def test_a_run_is_composed_once_and_anew_after_a_component_is_forgotten() -> None:
    device = Recorder()
    runs = ComposedRuns(device.do)
    first = Run(0, (b"a", b"b"), 0, False)
    second = Run(2, (b"c",), 1, True)
    for _ in range(2):
        runs.compose(1, first)
        runs.compose(2, second)
    assert device.asked == [("compose", 1, (b"a", b"b"), 0), ("compose", 2, (b"c",), 1)]
    device.asked.clear()
    runs.forget(b"b", [b"q", b"k"])
    assert device.asked == [("drop", 1), ("unload", b"b", [b"q", b"k"])], "the run before its component; the other stays"
    device.asked.clear()
    runs.compose(1, first)
    runs.compose(2, second)
    assert device.asked == [("compose", 1, (b"a", b"b"), 0)]


def test_layouts_are_added_in_the_same_order_everywhere_and_tables_grow() -> None:
    device = Recorder()
    small, large = KvLayout(1, 64, "bfloat16", 16), KvLayout(2, 64, "bfloat16", 16)
    kvs = [large, small, small]
    parts = [Component(bytes([i]), Kind.ATTENTION, 1, 1, 1, kv) for i, kv in enumerate(kvs)]
    chains = [Chain("long", (Block(()),), 700), Chain("deep", (Block(tuple(parts)),), 20)]
    runs = ComposedRuns(device.do)
    runs.prepare(chains)
    assert device.asked == [("add_layout", small), ("add_layout", large), ("grow", 700, 3)]
    runs.prepare([*chains, Chain("short", (Block(()),), 30)])
    assert len(device.asked) == 3, "what is there is not asked for again"


def test_deltas_are_attached_once_and_detached_before_they_are_unloaded() -> None:
    device = Recorder()
    runs = ComposedRuns(device.do)
    body = Run(0, (b"a", b"b"), 0, False)
    head = Run(2, (b"c",), 1, True)
    route = Route("m@w0", 1, "m", (Hop("w0", 0, 3),))
    tenant = LocalRoute(route, 0, (body, head), (), None, 8, 0, 0, 100, deltas=((1, b"d"),), touched=(True, False), delta=5)
    for _ in range(2):
        for number, run in enumerate((body, head)):
            runs.compose(number, run)
            runs.attach(number, run, tenant)
    assert device.asked == [("compose", 0, (b"a", b"b"), 0), ("attach", 0, 5, {1: b"d"}), ("compose", 1, (b"c",), 1)]
    device.asked.clear()
    runs.forget(b"d", [b"t"])
    assert device.asked == [("detach", 0, 5), ("unload", b"d", [b"t"])], "the run stays for the others"
    device.asked.clear()
    runs.attach(0, body, tenant)
    assert device.asked == [("attach", 0, 5, {1: b"d"})]
    runs.forget(b"a", [])
    assert device.asked[1:] == [("drop", 0), ("unload", b"a", [])], "with the run its deltas go"

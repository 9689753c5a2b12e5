"""Deferred streams show missing waits, reused buffers and early reads in every seed; torch's streams get the same calls."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from blockwright.gpu.cuda.deferred import POISON, DeferredEvent, DeferredStreams
from blockwright.gpu.cuda.staging import StagingRing
from blockwright.gpu.cuda.streams import DeviceStream, TorchStreams
from blockwright.gpu.errors import BackendError
from blockwright.tests.claims import claim

SEEDS = range(20)


class NeverRecorded(DeferredEvent):
    """An event that nobody waits for."""

    def record(self, stream: DeviceStream) -> None: ...


def sweeps(seed: int, missing: str = "") -> list[int]:
    """Sweeps of which two are open at a time: token n + 1 = 3 * token n + number of the sweep, modulo 251.

    Each has an upload, a kernel and a download on a stream of its own.
    """
    streams = DeferredStreams(seed)
    compute, copies = streams.stream(), streams.stream()
    uploads, results = StagingRing(streams, 1 if missing == "reuse" else 2, 1), StagingRing(streams, 3, 1)
    if missing == "reuse":
        uploads._ended = [NeverRecorded(streams)]
    given, table = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    out = torch.zeros(3, dtype=torch.uint8)
    under_way = list[Any]()
    tokens = list[int]()
    for number in range(20):
        with uploads.buffer(compute, 1) as up:
            up[0] = number
            compute.launch(partial(given.copy_, up))

        def kernel(place: int = number % 3) -> None:
            table[0] = (3 * table[0] + given[0]) % 251
            out[place] = table[0]

        compute.launch(kernel)
        ready, ended = streams.event(), streams.event()
        ready.record(compute)
        if missing != "wait":
            copies.wait(ready)
        with results.buffer(copies, 1) as down:
            copies.launch(partial(down.copy_, out[number % 3 : number % 3 + 1]))
        ended.record(copies)
        under_way.append((ended, down))
        if len(under_way) > 1:
            event, down = under_way.pop(0)
            if missing != "read":
                event.wait()
                assert event.done()
            tokens.append(int(down[0]))
    return tokens


def right() -> list[int]:
    token, found = 0, list[int]()
    for number in range(19):
        token = (3 * token + number) % 251
        found.append(token)
    return found


@claim("Host code for a card is tested with queued work that runs as late as it may", of="numerics")
def test_two_open_sweeps_are_right_in_every_order() -> None:
    assert all(sweeps(seed) == right() for seed in SEEDS)


@pytest.mark.parametrize("missing", ["wait", "read", "reuse"])
def test_every_seed_shows_what_is_missing(missing: str) -> None:
    assert not any(sweeps(seed, missing) == right() for seed in SEEDS)


def test_work_runs_late_and_in_the_order_of_its_stream() -> None:
    streams, ran = DeferredStreams(3), list[int]()
    stream, other = streams.stream(), streams.stream()
    for number in range(5):
        stream.launch(partial(ran.append, number))
    event = streams.event()
    assert event.done()
    event.record(stream)
    other.wait(event)
    other.launch(lambda: ran.append(9))
    assert (ran, streams.queued(), event.done()) == ([], 7, False)
    behind = streams.event()
    behind.record(other)
    behind.wait()
    assert (ran, streams.queued(), event.done()) == ([0, 1, 2, 3, 4, 9], 0, True)


def test_a_failure_of_queued_work_ends_everything() -> None:
    streams = DeferredStreams()
    stream = streams.stream()
    stream.launch(lambda: 1 // 0)
    stream.launch(lambda: None)
    with pytest.raises(ZeroDivisionError):
        streams.settle()
    for later in (streams.settle, lambda: stream.launch(lambda: None)):
        with pytest.raises(BackendError, match=r"work of the device has failed before .*start the worker again"):
            later()


def test_a_buffer_grows_and_is_poisoned_when_it_is_taken_again() -> None:
    streams = DeferredStreams()
    stream = streams.stream()
    ring = StagingRing(streams, 1, 2)
    with ring.buffer(stream, 2) as first:
        first.fill_(1)
    with ring.buffer(stream, 2) as again:
        assert first.tolist() == again.tolist() == [POISON, POISON]
    with ring.buffer(stream, 5) as larger:
        assert larger.numel() == 5


def test_streams_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a card its streams are an account of calls."""
    calls = list[tuple[Any, ...]]()

    class Account:
        def __init__(self, *given: Any, **named: Any) -> None:
            self.given = given or named

        def __getattr__(self, name: str) -> Any:
            def account(*given: Any) -> bool:
                calls.append((name, *given))
                return True

            return account

    def within(stream: Any) -> Any:
        calls.append(("stream", stream))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", Account)
    monkeypatch.setattr(torch.cuda, "Event", Account)
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(("synchronize", device)))
    streams = TorchStreams(1)
    stream, event = streams.stream(), streams.event()
    one: Any = stream.of_torch
    two: Any = event.of_torch
    assert one.given == (torch.device("cuda", 1),)
    assert two.given == {"blocking": True, "enable_timing": False}
    assert streams.queued() == 0
    with streams.current(stream):
        event.record(stream)
    stream.launch(lambda: calls.append(("work",)))
    stream.wait(event)
    event.wait()
    assert event.done()
    assert streams.queued() == 1, "an event says nothing of the other streams"
    streams.settle()
    assert streams.queued() == 0
    want = [("stream", one), ("record", one), ("stream", one), ("work",), ("wait_event", two), ("synchronize",), ("query",)]
    assert calls == [*want, ("synchronize", torch.device("cuda", 1))]

"""Faults that hit a kind of message between serving actors: the n-th of the kind is lost, late or doubled, or a process dies
as it is sent.

Owns the names of the kinds and the count of what went by and was hit. A kind is an endpoint, a member of what workers tell
each other, a flight, or the answer to a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import get_args

import msgpack

from blockwright.policies.sweep.events import PeerMessage
from blockwright.runtime.base.envelope import BOOK, CALL, CAST, DOWN, FAULT, REPLY
from blockwright.runtime.base.schema import schema_tag
from blockwright.runtime.testing import Delay, Drop, Duplicate, Fault, Kill
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Lane
from blockwright.transport.link_wire import ACK, CHUNK, OPEN, WELCOME
from blockwright.transport.wire import Traffic

HEAD = "head"
TO_WORKERS = {kind.__name__: b"\xce" + schema_tag(kind).to_bytes(4, "big")
              for kind in get_args(PeerMessage)}  # fmt: skip
LINK = {OPEN: "link open", WELCOME: "link welcome", CHUNK: "flight", ACK: "flight ack"}
ENDPOINTS = ("submit", "cancel", "ack", "replay", "tokens", "load", "unload", "routes", "status", "unfit",
             "up", "down", "holds", "admit", "end")  # fmt: skip
ANSWERS = ("submit", "load", "unload", "routes", "status", "admit", "unfit")
MOVED = ("export", "answer to export", "PagesTaken", "vacated")  # where requests move
GUESSED = ("GuessesStand",)  # where hidden states are guessed
OF_NODES = {BOOK: "address book", DOWN: "declared down"}  # what the head's node says to other nodes
_USUAL = sorted({*TO_WORKERS} - {*MOVED, *GUESSED})
KINDS = (*ENDPOINTS, *[f"answer to {name}" for name in ANSWERS], *_USUAL, *LINK.values())
ASKED = ("choose", "answer to choose")  # where dispatchers are asked
FETCHED = ("parameters", "chunk of parameters")  # where loads name a source
HELD = ("hold", "answer to hold", "unhold", "export", "PagesTaken")  # where they pause
_KNOWN = {*KINDS, *ASKED, *MOVED, *FETCHED, *HELD, *GUESSED, *OF_NODES.values()}
ACTIONS = ("drop", "delay", "duplicate", "kill")
Strike = tuple[str, str, int]  # kind, action, which of its kind (from 1)


@dataclass(frozen=True, slots=True)
class Hit:
    """A strike that met its message."""

    kind: str
    action: str
    way: str  # "w0#1 -> head#1"


class Strikes:
    """``choose`` is for ``Simulation.strike``."""

    def __init__(self, wanted: Iterable[Strike], random: Random) -> None:
        self.seen: Counter[str] = Counter()
        self.hits: list[Hit] = []
        self._wanted: dict[tuple[str, int], str] = {(kind, number): action for kind, action, number in wanted}
        self._random = random
        self._calls: dict[tuple[PeerId, PeerId, int], str] = {}  # caller, callee, id -> endpoint

    def choose(self, source: PeerId, target: PeerId, lane: Lane | Traffic, body: bytes) -> Fault | None:
        fault = None
        for kind in self._kinds(source, target, lane, body):
            self.seen[kind] += 1
            action = self._wanted.get((kind, self.seen[kind]))
            if action is not None and fault is None:
                fault = self._fault(action, source, target)
                self.hits.append(Hit(kind, action, f"{source} -> {target}"))
        return fault

    def _kinds(self, source: PeerId, target: PeerId, lane: Lane | Traffic, body: bytes) -> list[str]:
        if lane is Traffic.PARAMETERS and body[0] == CHUNK:
            return ["chunk of parameters"]
        if isinstance(lane, Traffic):
            return [LINK[body[0]]] if body[0] in LINK else []
        if lane is Lane.CONTROL and body[1] in OF_NODES:
            return [OF_NODES[body[1]]]
        if lane is not Lane.CONTROL or body[1] not in (CALL, CAST, REPLY, FAULT):
            return []
        unpacker = msgpack.Unpacker()
        unpacker.feed(body)
        unpacker.read_array_header()
        tag, number = unpacker.unpack(), unpacker.unpack()
        if tag in (REPLY, FAULT):
            answer = f"answer to {self._calls.pop((target, source, number), '')}"
            return [answer] if answer in _KNOWN else []
        unpacker.skip()
        endpoint = unpacker.unpack()
        if tag == CALL:
            self._calls[source, target, number] = endpoint
        if endpoint == "peer":
            return [kind for kind, mark in TO_WORKERS.items() if mark in body]
        return [endpoint] if endpoint in _KNOWN else []

    def _fault(self, action: str, source: PeerId, target: PeerId) -> Fault:
        random, ends = self._random, (source.name, target.name)
        match action:
            case "drop":
                return Drop(0.0, *ends)
            case "delay":
                return Delay(0.0, *ends, random.choice((0.01, 0.1, 1.0, 4.0)) * random.uniform(0.5, 1.5), 0.0)
            case "duplicate":
                return Duplicate(0.0, *ends, lag=random.choice((0.0, 0.01, 0.5)))
        return Kill(0.0, random.choice([name for name in ends if name != HEAD]))


class Coverage:
    """How often each action has hit each kind, over many seeds."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, strikes: Strikes) -> None:
        self.counts.update((hit.kind, hit.action) for hit in strikes.hits)

    def missing(self) -> list[tuple[str, str]]:
        return [(kind, action) for kind in KINDS for action in ACTIONS if not self.counts[kind, action]]

    def missing_kinds(self, turn: int) -> list[tuple[str, str]]:
        """Of the kinds that nothing has hit, each with one action: another one in each turn."""
        cells = [(kind, ACTIONS[(place + turn) % len(ACTIONS)]) for place, kind in enumerate(KINDS)]
        return [(kind, action) for kind, action in cells if not self.hit_by_any(kind)]

    def hit(self, cell: tuple[str, str]) -> bool:
        return self.counts[cell] > 0

    def hit_by_any(self, kind: str) -> bool:
        return any(self.counts[kind, action] for action in ACTIONS)

    def table(self) -> str:
        lines = [f"{'kind of message':20}" + "".join(f"{action:>10}" for action in ACTIONS)]
        lines += [f"{kind:20}" + "".join(f"{self.counts[kind, action]:10}" for action in ACTIONS) for kind in KINDS]
        return "\n".join(lines)

"""The role of KV for requests of a gateway: who gets them, what is copied as they begin, and what differs with it off."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.policies.model.chain import KvLayout
from blockwright.policies.requests.book.dispatch_messages import Ask
from blockwright.policies.requests.book.messages import ExportAt, HeartbeatReceived, Submit
from blockwright.policies.requests.paces import WorkerLink
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, route

HISTORY = 40  # tokens of a conversation
MODES = ("owner", "recompute", "least-busy")


def with_kv(name: str, **more: Any) -> Any:
    """Return a chain whose components have KV."""
    made = chain(name)
    layout = KvLayout(1, 8, "f32", 4)
    blocks = [replace(block, components=tuple(replace(c, kv=layout) for c in block.components)) for block in made.blocks]
    return replace(made, blocks=tuple(blocks), **more)


def bench(kv: str, workers: tuple[str, ...] = ("w0", "w1"), chains: Any = None, **more: Any) -> Bench:
    routes = more.pop("routes", [route(worker) for worker in workers])
    return Bench(*workers, routes=routes, chains=chains or [with_kv("m")], kv=kv, **more)


def sent(effects: list[Any]) -> str:
    (effect,) = [effect for effect in effects if isinstance(effect, Submit)]
    return effect.worker


def exports(effects: list[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, ExportAt)]


def conversation(made: Bench) -> None:
    """A conversation has had an answer on w0, and w0 has a little more to do than w1."""
    assert sent(made.generate("a", HISTORY, max_tokens=4)) == "w0"
    made.report("w0", emitted("a", 1, HISTORY, [9] * 4, finish="length"))
    assert sent(made.generate("b", 3, salt=b"b")) == "w0"


@claim("With kv_dispatch=owner a live server sends a request to the worker that has KV of its prompt", of="adaptive")
@pytest.mark.parametrize(("mode", "home"), [("off", "w1"), ("owner", "w0"), ("recompute", "w1"), ("least-busy", "w1")])
def test_who_gets_the_next_request_of_a_conversation(mode: str, home: str) -> None:
    made = bench(mode)
    conversation(made)
    effects = made.generate("c", HISTORY)
    assert sent(effects) == home
    assert len(exports(effects)) == (mode == "least-busy"), "others copy nothing here"


@claim("KV that another worker has is copied as a request begins, from its last page on", of="adaptive")
def test_what_another_worker_has_is_copied_while_the_prompt_is_computed() -> None:
    made = bench("least-busy")
    conversation(made)
    effects = made.generate("c", HISTORY + 2)
    assert [type(effect) for effect in effects] == [Submit, ExportAt], "the request goes first"
    (copy,) = exports(effects)
    wanted, submission = copy.wanted, effects[0].submission
    pages = HISTORY // 4
    assert (copy.worker, wanted.route, wanted.attempt, wanted.since) == ("w0", route("w0").id, 1, 0)
    assert wanted.hashes == submission.page_hashes[:pages]
    assert [(to.worker, to.first, to.end) for to in wanted.to] == [("w1", 0, 1)]
    (event,) = [one for one in made.state.describe("c").events if one["event"] == "copying"]
    assert (event["source"], event["target"], event["pages"]) == ("w0", "w1", pages)
    made.report("w1", emitted("c", 1, HISTORY + 2, [9] * 4, finish="length"))
    made.generate("x", 3, salt=b"x")
    assert exports(made.generate("d", HISTORY + 2)) == [], "now both have it"


def test_a_prompt_without_kv_elsewhere_and_a_dead_owner_copy_nothing() -> None:
    made = bench("least-busy")
    assert exports(made.generate("a", HISTORY)) == []
    assert exports(made.generate("b", HISTORY, salt=b"other")) == []
    made.die("w0")
    assert exports(made.generate("c", HISTORY)) == []


def test_kv_that_a_fast_link_brings_counts_as_held_in_part() -> None:
    made = bench("owner")
    conversation(made)
    for worker in ("w0", "w1"):
        made(HeartbeatReceived(worker, 1, 0, speed=400.0))  # a second for a token of a chain of 400 bytes
    made.state.parts.table.link = WorkerLink(0.0, 1e9)
    effects = made.generate("c", HISTORY)
    assert sent(effects) == "w1"
    assert len(exports(effects)) == 1


def test_a_dispatcher_gets_the_standing_of_the_owner() -> None:
    made = bench("owner", asks=True)
    made.generate("a", HISTORY)
    (ask,) = [one for one in made.generate("b", 3) if isinstance(one, Ask)]
    assert ask.standings == {}, "no KV counts for it"
    made.state.parts.pages.note("w1", made.state.parts.pages.lineage(made.state.parts.table.chains["m"]),
                                made.state.parts.active["a"].hashes(4))  # fmt: skip
    (ask,) = [one for one in made.generate("c", HISTORY) if isinstance(one, Ask)]
    assert {id: one.owns for id, one in ask.standings.items()} == {route("w0").id: False, route("w1").id: True}


def test_pages_of_a_variant_are_copied_only_to_its_own_chain() -> None:
    chains = [with_kv("m"), with_kv("m~1", variant_of="m")]
    made = bench("least-busy", chains=chains, routes=[route("w0"), route("w1", application="m~1")])
    conversation(made)
    effects = made.generate("c", HISTORY)
    assert sent(effects) == "w1"
    assert exports(effects) == []


@claim("With kv_dispatch=off all effects are as before", of="adaptive")
def test_without_kv_anywhere_all_modes_send_alike() -> None:
    random, made = Random(4), {mode: bench(mode) for mode in ("off", *MODES)}
    for number in range(40):
        prompt, most = random.randint(1, 20), random.randint(1, 9)
        found = [one.generate(f"r{number}", prompt, most, salt=b"%d" % number) for one in made.values()]
        assert all(one == found[0] for one in found)
        if number % 3 == 0:
            home = sent(found[0])
            done = emitted(f"r{number}", 1, prompt, [9] * most, finish="length")
            reports = [one.report(home, done) for one in made.values()]
            assert all(one == reports[0] for one in reports)

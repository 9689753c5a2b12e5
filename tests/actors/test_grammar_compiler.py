"""The compiler of a worker's grammars: one at a time, in the tenants' turns, and none that no sequence wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from blockwright.actors.worker.grammar_compiler import GrammarCompiler
from blockwright.gpu.sampling.grammars import GrammarError
from blockwright.policies.plan.grammar import REGEX, Grammar, TokenVocabulary
from blockwright.policies.sweep.events import GrammarReady
from blockwright.tests.waiting import until

VOCABULARY = TokenVocabulary(file="", digest=b"", size=100, ends=[99])


class FakeStore:
    """A store whose grammars compile when they may; ``log``: what it did."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.may = threading.Semaphore(0)
        self.texts: dict[bytes, str] = {}

    def compile(self, grammar: Grammar) -> None:
        self.texts[grammar.key] = grammar.text
        assert self.may.acquire(timeout=30)
        self.log.append(grammar.text)
        if grammar.text == "bad":
            raise GrammarError("it is bad")
        if grammar.text == "broken":
            raise RuntimeError("a panic")

    def release(self, key: bytes) -> None:
        self.log.append(f"release {self.texts[key]}")


class FakeQueue:
    """The device's queue, without a device."""

    def __init__(self, store: FakeStore) -> None:
        self._executor = SimpleNamespace(tables=SimpleNamespace(compiled=store))
        self.calls = 0

    async def call(self, work: Callable[[Any], Any]) -> Any:
        self.calls += 1
        return work(self._executor)


def grammar(text: str) -> Grammar:
    return Grammar(form=REGEX, text=text, vocabulary=VOCABULARY)


class CompilerRig:
    """A compiler on a fake store; ``ready``: the faults that it reported, by key."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.ready: dict[bytes, str] = {}
        self.queue = FakeQueue(self.store)
        self.compiler = GrammarCompiler(self.queue, self._apply, {})  # type: ignore[arg-type]

    def _apply(self, event: Any) -> None:
        assert isinstance(event, GrammarReady)
        self.ready[event.key] = event.fault

    async def begun(self) -> None:
        """Wait until the first grammar is being compiled."""
        await until(lambda: bool(self.store.texts))

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self.store.may.release()
        assert self.compiler._task is not None
        await self.compiler._task


async def test_tenants_take_turns() -> None:
    rig = CompilerRig()
    for i in range(6):
        rig.compiler.compile(grammar(f"a{i}"), "a")
    await rig.begun()
    rig.compiler.compile(grammar("b"), "b")
    await rig.finish(7)
    assert rig.store.log.index("b") <= 2
    assert [text for text in rig.store.log if text != "b"] == [f"a{i}" for i in range(6)]
    assert [*rig.ready.values()] == [""] * 7


async def test_only_the_first_grammar_waits_for_the_device() -> None:
    """A sweep may run there, such as the prefill of all requests that a worker's death brought."""
    rig = CompilerRig()
    for text in ("a", "b"):
        rig.compiler.compile(grammar(text), "")
        await rig.finish(1)
    assert rig.queue.calls == 1
    assert [*rig.ready.values()] == ["", ""]


async def test_faults_are_reported_and_end_nothing() -> None:
    rig = CompilerRig()
    for text in ("bad", "broken", "good"):
        rig.compiler.compile(grammar(text), "")
    await rig.finish(3)
    assert [*rig.ready.values()][:1] == ["it is bad"]
    assert "RuntimeError: a panic" in [*rig.ready.values()][1]
    assert [*rig.ready.values()][2] == ""


async def test_what_no_sequence_wants_is_not_compiled_or_let_go() -> None:
    rig = CompilerRig()
    kept, gone, back = map(grammar, ("kept", "gone", "back"))
    for one in (kept, back, gone):
        rig.compiler.compile(one, "")
    await rig.begun()  # kept is being compiled
    rig.compiler.release(gone.key)
    rig.compiler.release(kept.key)
    rig.compiler.compile(kept, "")  # wanted again before it was ready
    rig.compiler.release(back.key)
    rig.compiler.compile(back, "")
    await rig.finish(2)
    assert rig.store.log == ["kept", "back"]
    assert rig.ready == {kept.key: "", back.key: ""}
    rig.compiler.release(kept.key)
    assert rig.store.log[-1] == "release kept"


async def test_a_grammar_that_is_unwanted_when_it_is_compiled_is_let_go() -> None:
    rig = CompilerRig()
    one = grammar("one")
    rig.compiler.compile(one, "")
    await rig.begun()
    rig.compiler.release(one.key)
    await rig.finish(1)
    assert rig.store.log == ["one", "release one"]
    assert rig.ready == {}

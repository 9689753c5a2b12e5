"""The process that tries grammars: its answers, its end over a question, and the refusals that name what is missing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.api.constraints import checker
from blockwright.api.constraints.checker import CheckerFull, GrammarChecker
from blockwright.api.constraints.checker_process import CheckerAnswers
from blockwright.api.text.tokenizer import TextCodec
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.token_bytes import token_bytes
from blockwright.policies.plan.grammar import JSON, LARK, REGEX
from blockwright.tests.claims import claim


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    made.close()


@claim("A grammar that takes too long to compile ends a process of its own, and is refused", of="structured-output")
async def test_faults_are_told_and_an_ended_child_is_replaced(grammars: GrammarChecker) -> None:
    assert await grammars.fault(REGEX, "a+b") == ""
    assert "unclosed" in await grammars.fault(REGEX, "(a")
    schema = {
        "$defs": {"x": {"anyOf": [{"type": "string"}, {"oneOf": [{"type": "integer"}, {"type": "number"}]}]}},
        "$ref": "#/$defs/x",
    }
    fault = await grammars.fault(JSON, json.dumps(schema))
    assert fault.startswith("the keyword oneOf has alternatives")
    assert fault.endswith("(at /$defs/x/anyOf/1)")
    # Compiles, and fails with its second token; on a slow processor its seconds are over first.
    assert (await grammars.fault(REGEX, "a{1000000}")).endswith("simpler one")
    assert grammars._ask(["no question"]) is None  # the child ends over it, as at its limits
    assert "missing" in await grammars.fault(LARK, "start: missing")


async def test_a_copy_that_takes_too_long_ends_and_the_child_stays(
    grammars: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await grammars.fault(REGEX, "ab") == ""
    child = grammars._child
    monkeypatch.setattr(checker, "SECONDS", (0.02, 0.02))
    assert "takes too long" in await grammars.fault(REGEX, "b{1000000}")
    assert await grammars.fault(REGEX, "abc") == ""
    assert grammars._child is child


class ScriptedChecker(GrammarChecker):
    """A checker whose child needs the seconds that a grammar's text says; ``tried``: what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[tuple[str, float]] = []

    def _try(self, form: str, text: str, seconds: float) -> tuple[str | None, float]:
        self.tried.append((text, seconds))
        needed = float(text.split()[0])
        return (None, seconds) if needed > seconds else ("", needed)


@claim("Hostile grammars of one tenant delay the grammar of another by one of them at most", of="structured-output")
async def test_tenants_take_turns_and_slow_ones_come_last() -> None:
    made = ScriptedChecker()
    slow = [asyncio.create_task(made.fault(REGEX, f"9 {i}", "hostile")) for i in range(50)]
    await asyncio.sleep(0)
    mine = asyncio.create_task(made.fault(REGEX, "0.01 mine", "me"))
    assert await mine == ""
    assert [text for text, _ in made.tried].index("0.01 mine") <= 2
    late = asyncio.create_task(made.fault(REGEX, "0.01 theirs", "hostile"))  # behind the first tries of its own tenant
    assert await late == ""
    assert sum(seconds == checker.SECONDS[1] for _, seconds in made.tried) <= 5
    assert all("takes too long" in fault for fault in await asyncio.gather(*slow))
    assert len(made.tried) == 102
    made.close()


async def test_the_queue_of_new_grammars_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "MOST", 3)
    monkeypatch.setattr(checker, "MOST_OF_ONE", 3)
    made = ScriptedChecker()
    first = [asyncio.create_task(made.fault(REGEX, f"0.01 {i}", "a")) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(CheckerFull, match="own"):
        await made.fault(REGEX, "0.01 more", "a")
    again = asyncio.create_task(made.fault(REGEX, "0.01 2", "a"))  # waits already
    last = asyncio.create_task(made.fault(REGEX, "0.01 b", "b"))
    await asyncio.sleep(0)
    with pytest.raises(CheckerFull, match="all"):
        await made.fault(REGEX, "0.01 c", "c")
    again.cancel()
    first[2].cancel()
    await asyncio.gather(*first[:2], last)
    assert [text for text, _ in made.tried] == ["0.01 0", "0.01 b", "0.01 1"]
    assert await made.fault(REGEX, "0.01 2", "a") == ""
    made.close()


async def test_the_table_of_a_tokenizer(grammars: GrammarChecker, folder: Path) -> None:
    codec, file = TextCodec.load(CheckpointFiles(folder)), folder / "tokenizer.json"
    special = sorted(codec.special)
    facts = await grammars.table(file, 300, special, codec.token_bytes)
    assert (facts.fault, facts.hidden, facts.digest) == ("", [], token_bytes(file).digest)
    other = await grammars.table(file, 301, special, lambda token: b"x")
    assert "is built otherwise than" in other.fault
    hidden = await grammars.table(file, 302, [*special, 9], lambda token: b"" if token == 9 else codec.token_bytes(token))
    assert (hidden.fault, hidden.hidden) == ("", [9])
    assert "no readable vocabulary" in (await grammars.table(folder / "none.json", 300, [], codec.token_bytes)).fault


def test_without_the_library_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for form, text in ((REGEX, "a"), (JSON, '{"anyOf":[{},{}]}')):
        (fault,) = CheckerAnswers().answer(["compile", form, text])
        assert fault.endswith("install it (pip install llguidance), or leave the constraint out")

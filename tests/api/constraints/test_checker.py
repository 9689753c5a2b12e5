"""The process that tries grammars: its answers, its end over a question, and the refusals that name what is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.api.constraints import checker
from blockwright.api.constraints.checker import GrammarChecker
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
    assert fault.startswith("oneOf")
    assert fault.endswith("(at /$defs/x/anyOf/1)")
    assert "masks cost more" in await grammars.fault(REGEX, "a{1000000}")  # compiles, and fails with its second token
    assert grammars._ask(["no question"]) is None  # the child ends over it, as at its limits
    assert "missing" in await grammars.fault(LARK, "start: missing")


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
        (fault,) = checker._Answers().answer(["compile", form, text])
        assert fault.endswith("install it (pip install llguidance), or leave the constraint out")

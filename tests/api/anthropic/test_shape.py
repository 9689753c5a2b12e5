"""The blocks of a message, however its text comes: the deltas joined are the whole answer."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.anthropic.shape import MessageBlocks, blocks_of
from blockwright.api.text.turn.known_templates import known_template
from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import read_template
from blockwright.tests.api.anthropic.events import blocks
from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.claims import claim

TEMPLATE = read_template(known_template(QWEN3))
PARTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "so", " \n", "{", '"', "é"),
    '{"name": "f", "arguments": {"a": [1, "b\\u00e9"]}}',
    '{"arguments": {"a": -1.5e3, "c": null}, "name": "g"}',
    '{"name": "f", "arguments": {"a": nope}}',
    '{"name": "f", "arguments": "no object"}',
    '{"name": "f", "arguments": {"a": "',
)


def events_of(pieces: list[str], *, shown: bool) -> list[Any]:
    reader, made = TurnReader(TEMPLATE), MessageBlocks("msg-0", shown=shown)
    found = [event for piece in pieces for delta in reader.feed(piece) for event in made.add(delta)]
    return [*found, *(event for delta in reader.finish() for event in made.add(delta)), *made.close()]


@claim("The deltas of a message joined are the whole message, however the model's text is split", of="http-api")
@given(st.lists(st.sampled_from(PARTS), max_size=8), st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_deltas_joined_are_the_whole(parts: list[str], cuts: list[int], shown: bool) -> None:
    text = "".join(parts)
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = events_of([text[i:j] for i, j in itertools.pairwise(at)], shown=shown)
    whole = blocks_of(found)
    assert whole == blocks(copy.deepcopy(found))  # as the client joins them
    assert all(shown or not block.get("thinking") for block in whole)
    assert all(block != {"type": "text", "text": ""} for block in whole)

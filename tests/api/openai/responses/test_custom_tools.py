"""Custom tools: their argument is held in the model's own format of calls, and read back piece by piece."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from blockwright.api.openai.responses.custom_tools import InputReader, custom_tool
from blockwright.api.text.turn.call_forms import TurnError
from blockwright.api.text.turn.grammar import MUST, ToolRule, TurnRules
from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import read_template
from blockwright.policies.plan.grammar import LARK
from blockwright.tests.api.openai.responses.conftest import WEATHER
from blockwright.tests.api.text.turn.test_grammar import matcher_for, walk
from blockwright.tests.api.text.turn.turns import TURNS
from blockwright.tests.claims import claim

URL = "/v1/responses"
OTHER_ARGUMENTS = {"coder", "gemma", "gemma function", "glm", "lfm", "llama4", "olmo"}
LINES = 'start: ("+" | "-") /[a"]{0,3}/ LF\n%import common.LF'


def custom(syntax: str, definition: str) -> dict[str, Any]:
    format = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "patch", "description": "of a file", "format": format}


@pytest.mark.parametrize("split", [1, 2, 3, 0])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":""}', ""),
        ('{ "input" : "a b" }', "a b"),
        ('{"input": "\\"\\\\\\/\\b\\f\\n\\r\\t"}', '"\\/\b\f\n\r\t'),
        ('{"input": "\\u00e9é\\ud83d\\ude00😀"}', "éé😀😀"),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"input": "\\ud83db\\ude00\\ud83d\\ud83d\\ude00"}', "\ufffdb\ufffd\ufffd😀"),
        ('{"input": "\\ud83d\\n"}', "\ufffd\n"),
        ('{"input": "cut off', "cut off"),
        ('{"input": "cut \\u00', "cut "),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"input": 7}', '{"input": 7}'),
        ("{}", "{}"),
    ],
)
def test_the_text_is_read_for_every_split(arguments: str, text: str, split: int) -> None:
    reader = InputReader()
    step = split or len(arguments)
    pieces = [arguments[i : i + step] for i in range(0, len(arguments), step)]
    assert "".join(map(reader.feed, pieces)) == text


def test_any_text_comes_back() -> None:
    draw = random.Random(1)
    for ascii in (True, False):
        for _ in range(200):
            text = "".join(draw.choice('a"\\/\n\té😀\x01\u2028') for _ in range(draw.randrange(9)))
            reader = InputReader()
            assert "".join(map(reader.feed, json.dumps({"input": text}, ensure_ascii=ascii))) == text


@claim(
    "The argument of a custom tool is in its grammar, and is read as one text, for each model that writes JSON", of="tools"
)
@pytest.mark.parametrize("kind", sorted(TURNS.keys() - OTHER_ARGUMENTS))
@pytest.mark.parametrize(
    ("tool", "fits"),
    [
        ({"type": "custom", "name": "patch"}, lambda text: True),
        (custom("regex", r"^[+-][a-c\"\\]{0,3}$"), lambda text: text[0] in "+-" and not set(text[1:]) - set('abc"\\')),
        (custom("regex", "ab|^b$"), lambda text: text in ("ab", "b")),
        (custom("lark", LINES), lambda text: text[0] in "+-" and text.index("\n") == len(text) - 1),
    ],
)
def test_what_the_grammar_lets_through_fits(kind: str, tool: dict[str, Any], fits: Any) -> None:
    assert inputs(kind, tool, fits) > 2


@claim("A grammar of a custom tool is refused where a model writes its arguments in another form than JSON", of="tools")
@pytest.mark.parametrize("kind", sorted(OTHER_ARGUMENTS))
def test_other_arguments_are_free_or_refused(kind: str) -> None:
    free = inputs(kind, {"type": "custom", "name": "patch"}, lambda text: True)
    assert free > 2 or kind == "coder"  # a walk among its few marks does not end
    with pytest.raises(TurnError, match="cannot hold the keyword pattern at /properties/input exactly"):
        inputs(kind, custom("regex", "ab|^b$"), lambda text: True)


def inputs(kind: str, tool: dict[str, Any], fits: Callable[[str], bool]) -> int:
    """Return the number of inputs of a tool that random walks through the grammar of a turn write; each must fit."""
    template = read_template(TURNS[kind])
    made = custom_tool(tool, "tools[0]")
    base = matcher_for(kind, TurnRules(tools=[ToolRule("patch", made.parameters)], calls=MUST, many=False), False)
    found = 0
    for seed in range(25):
        turn = walk(base.deep_copy(), seed)
        if turn is None:
            continue
        reader = TurnReader(template)
        pieces = [delta.call for delta in reader.feed(turn) + reader.finish() if delta.call is not None]
        text = "".join(map(InputReader().feed, (piece.arguments for piece in pieces)))
        assert fits(text), turn
        found += 1
    return found


async def test_a_custom_tool_is_held_and_printed(responses: Any, codec: Any) -> None:
    client, port = await responses("a")
    await client.post(URL, json={"input": "a", "tools": [custom("regex", "[ab]+"), WEATHER]})
    generation = port.streams[-1].generation
    assert generation.sampling.grammar.form == LARK  # also when the model may choose
    assert "[ab]+" in generation.sampling.grammar.text
    prompt = codec.decode(generation.prompt, special=True)
    assert "of a file\\n\\nIts input follows this regular expression:\\n[ab]+" in prompt
    assert '"required": ["input"]' in prompt
    history = [
        {"role": "user", "content": "a"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": '"x"\n'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ]
    await client.post(URL, json={"input": history, "tools": [custom("regex", "[ab]+")]})
    prompt = codec.decode(port.streams[-1].generation.prompt, special=True)
    assert '{"name": "patch", "arguments": {"input": "\\"x\\"\\n"}}' in prompt
    assert "<tool_response>\ndone\n</tool_response>" in prompt


@pytest.mark.parametrize(
    ("tool", "param", "said"),
    [
        (custom("gbnf", "a"), "tools[0].format.syntax", "give lark or regex"),
        (custom("regex", "(?=a)b"), "tools[0].format.definition", "look-ahead"),
        (custom("regex", r"(a)\1"), "tools[0].format.definition", "cannot be held exactly"),
        (custom("regex", "a)|(b"), "tools[0].format.definition", "a closing bracket at 1"),
        (custom("regex", "[a"), "tools[0].format.definition", "does not close"),
        (custom("regex", "a\\"), "tools[0].format.definition", "ends in a backslash"),
        (custom("lark", "start: /[^/"), "tools[0].format.definition", "does not close"),
        (custom("lark", "start: /a)|(b/"), "tools[0].format.definition", "a closing bracket"),
        (custom("regex", ""), "tools[0].format.definition", "not empty"),
        (custom("regex", "a" * 20_000), "tools[0].format.definition", "at most 16,384"),
        (custom("lark", 'start: "(" start? ")"'), "tools[0].format.definition", "refers to itself"),
        (custom("lark", "start: <a>"), "tools[0].format.definition", "cannot be read"),
        ({"type": "custom", "name": "a", "format": {"type": "json"}}, "tools[0].format", "text or grammar"),
        ({"type": "custom", "name": "a", "format": 7}, "tools[0].format", "text or grammar"),
        ({"type": "custom", "name": "a", "description": 7}, "tools[0].description", "no text"),
        ({"type": "custom"}, "tools[0].name", "letters"),
    ],
)
async def test_what_cannot_be_held_is_refused_by_name(responses: Any, tool: dict[str, Any], param: str, said: str) -> None:
    client, _ = await responses("a")
    answer = await client.post(URL, json={"input": "a", "tools": [tool]})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], said in error["message"]) == (400, param, True), error


async def test_a_model_without_a_turn_template_has_no_custom_tools(responses: Any) -> None:
    client, _ = await responses("a", template="{{ messages[0].content }}")
    answer = await client.post(URL, json={"input": "a", "tools": [custom("regex", "a")]})
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "no_turn_template")

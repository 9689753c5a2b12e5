"""Lark grammars: schemas inside are held as elsewhere, and what would change how tokens are drawn is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest

from blockwright.api.constraints.schema import grammar_constraint
from blockwright.api.errors import ApiError
from blockwright.tests.claims import claim


@claim("A schema inside a Lark grammar is held or refused as any other", of="structured-output")
@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a"', "BNF"),
        ('{"grammars": []}', "is JSON"),
        ('start: %json {"x\\u002dguidance": {"lenient": true}, "not": {}}', "keyword not"),
        ('start: %lark {\n start: %json {"minProperties": 2}\n}', "keyword minProperties"),
        ("start: %json 3", "without a schema"),
        ("start: %json " + "[" * 100_000, "without a schema"),
        ('start: "%json {}"', "in a text"),
        ('start: /"/ <[65]> /"/', "has the token"),
        ("start: /a\n/ <[65]> /b/", "has the token"),
        ('start: "a" <|end|>', "has the token"),
        ('start: a\na[capture, temperature = 0.5]: "b"', "has temperature"),
        ('start: a\na[max_tokens=3]: "b"', "has max_tokens"),
        ("%json{}" * 200, "more than 100 schemas"),
        (3, "give a text"),
    ],
)
def test_a_refusal_says_what_is_refused(grammar: object, said: str) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        grammar_constraint(grammar, "grammar")
    assert refused.value.status == 400


def test_texts_expressions_and_comments_are_left_as_they_are() -> None:
    grammar = 'start: "<b>" a /<[65]> temperature=/ // <[65]>\na[lazy]: "max_tokens=3" ["c"]\n'
    assert grammar_constraint(grammar, "grammar").text == grammar
    made = grammar_constraint('start: %json {"title": "t", "requird": 1} | "a"', "grammar")
    assert (made.text, made.ignored) == ('start: %json {} | "a"', ("grammar%json/requird",))


@pytest.mark.parametrize("part", ['"\\\\', "/\\\\", "<", "temperature ", "%json {"])
def test_a_hostile_grammar_is_read_in_linear_time(part: str) -> None:
    """Each of them takes minutes if the search begins anew at every character."""
    text = f"start: {part * (200_000 // len(part))}"
    with suppress(ApiError):
        grammar_constraint(text, "grammar")

"""Expressions of Lark grammars: the grammar library, which reads Lark itself, judges the language; refusals by name."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.api.constraints.lark_pattern import lark_pattern
from blockwright.api.errors import ApiError
from blockwright.gpu.sampling.grammars import compiled
from blockwright.policies.plan.grammar import LARK, REGEX
from blockwright.tests.api.text.turn.test_grammar import vocabulary, walk
from blockwright.tests.claims import claim

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""  # Codex's apply_patch
SUM = """// a sum, as in OpenAI's guide
start: expr
expr: term (SP ADD SP term)* -> add
    | term
term: factor (SP MUL SP factor)* -> mul
    | factor
factor: INT
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
"""
SMALL = r"""
?start: _word (","  _word)~1..2 [tail] # the end
!_word: DIGIT{2,3} | "a".."c" | "\"\\\n" | /x\/[yz]+/
tail: ("!"
  | "?")
%import common (DIGIT, LETTER)
"""
SPACED = """
start: "let" NAME "=" INT
NAME: LETTER (LETTER | DIGIT)*
%import common.LETTER
%import common.DIGIT
%import common.INT
%ignore " "
"""
GRAMMARS = {"patch": PATCH, "sum": SUM, "small": SMALL}


def accepts(language: Any, text: str) -> bool:
    matcher, data = language.deep_copy(), [*text.encode()]
    return matcher.try_consume_tokens(data) == len(data) and bool(matcher.is_accepting())


def expression(grammar: str) -> Any:
    return compiled(REGEX, lark_pattern(grammar, "g"), vocabulary())


@claim("A Lark grammar of a custom tool becomes an expression of the same language", of="tools")
@pytest.mark.parametrize("name", GRAMMARS)
def test_both_have_the_same_texts(name: str) -> None:
    base: Any = compiled(LARK, GRAMMARS[name], vocabulary())
    ours = expression(GRAMMARS[name])
    found = 0
    for seed in range(60):
        for source in (base, ours):
            text = walk(source.deep_copy(), seed)
            if text is None or "\ufffd" in text:
                continue
            found += 1
            assert accepts(ours, text), text
            assert accepts(base, text), text
            for wrong in (text + "~", text[1:], "*" + text):
                assert accepts(ours, wrong) == accepts(base, wrong), wrong
    assert found > 2


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("*** Begin Patch\n*** Add File: a\n+x\n*** End Patch", True),
        ("*** Begin Patch\n*** Update File: a\n@@ f\n-x\n+y\n*** End of File\n*** End Patch\n", True),
        ("*** Begin Patch\n*** End Patch", False),
        ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", False),
    ],
)
def test_patches(text: str, held: bool) -> None:
    assert accepts(expression(PATCH), text) is held


@pytest.mark.parametrize(
    ("text", "held"),
    [("letx=1", True), (" let x  = 12 ", True), ("let x", False), ("let x y = 1", False), ("le t x=1", False)],
)
def test_what_is_ignored_may_stand_between_terminals(text: str, held: bool) -> None:
    assert accepts(expression(SPACED), text) is held


def test_a_text_without_case() -> None:
    pattern = expression('start: "Ab1é"i')
    assert all(accepts(pattern, text) for text in ("aB1É", "AB1é"))
    assert not accepts(pattern, "aB2é")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start: "(" start ")" | "x"', "has the rule 'start' that refers to itself"),
        ('start: a\na: b\nb: "x" a |', "has the rule 'a' that refers to itself"),
        ('begin: "a"', "has no rule start"),
        ("start: a", "uses 'a', which is no rule"),
        ('start: "a"\nstart: "b"', "the rule 'start' twice"),
        ('start: "a"\n%declare B', "has %declare"),
        ("start: %json {}", "in a rule"),
        ("start: B\n%import common.NOTHING", "imports common.'NOTHING'"),
        ("start: B\n%import python.NAME", "only %ignore and %import common.NAME"),
        ("start: /a/i", "has the flag 'i'"),
        ('start.2: "a"', "a priority"),
        ('start{x}: "a"', "no colon"),
        ('start[lazy]: "a"', "no colon"),
        ("start: <think>", "cannot be read"),
        ('start: "a" & "b"', "cannot be read"),
        ('start: ("a"', "in a rule"),
        ('start: "a")', "in a rule"),
        ('start: "a"~5000', "repeats '5000' times"),
        ('start: "a"~3..2', "the smaller number first"),
        ('start: "\\q"', "the escape"),
        ('start: "b".."a"', "a range that is none"),
        ('start: "ab".."c"', "a range that is none"),
        ("", "has no rule start"),
        ('"a"', "begins with"),
        ("start: " + "(" * 100 + '"a"' + ")" * 100, "in each other"),
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(200)) + '\nr200: "a"', "in each other"),
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(30)) + '\nr30: "a"', "more than 16,384"),
        ("\n".join(f'r{i}: "a"' for i in range(501)), "more than 500 rules"),
        ("start: " + '"a" ' * 10_000, "more than 16,384"),
    ],
)
def test_what_has_no_expression_is_refused_by_name(grammar: str, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        lark_pattern(grammar, "tools[0].format.definition")
    assert refused.value.message.startswith("tools[0].format.definition ")
    assert said in refused.value.message
    assert refused.value.status == 400

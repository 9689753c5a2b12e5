"""What a chat template may do: everything that templates of checkpoints do, and no more than a budget of work."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import jinja2
import pytest

from blockwright.api.errors import ApiError
from blockwright.api.text import template_engine
from blockwright.api.text.chat_template import LONGEST, ChatTemplate, Rendering
from blockwright.api.text.template_budget import MOST_CHARACTERS, PER_MESSAGE, STEPS
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.claims import claim

HI = [{"role": "user", "content": "hi"}]
MOST = MOST_CHARACTERS
FEW = STEPS // 20
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{{% set a = namespace(a={start}) %}}{{% for i in range(60) %}}{{% set a.a = {twice} %}}{{% endfor %}}{shown}"


def render(source: str, messages: Any = HI, **variables: Any) -> str:
    how = Rendering(begin=True, proceed=False, variables=variables, longest=1 << 25)
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, how)


def refusal(source: str, **variables: Any) -> str:
    with pytest.raises(ApiError) as caught:
        render(source, **variables)
    assert (caught.value.status, caught.value.code) == (400, "template_error")
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("{{ 'x' * 400000000 }}", "400000000"),
        ("{{ 10 ** 9 * 'xyz' }}", "3000000000"),
        ("{{ [0] * 10 ** 10 }}", "2560000000000"),
        ("{{ '%0400000000d' % 7 }}", "4000000"),
        ("{{ '%*d' % (400000000, 7) }}", "10^15 or more"),
        ("{{ '%0400000000d' | format(7) }}", "4000000"),
        ("{{ '{:400000000}'.format(7) }}", "4000000"),
        ("{{ '{:{w}}'.format(7, w=400000000) }}", "10^15 or more"),
        ("{{ 'x' | center(400000000) }}", "4000000"),
        ("{{ 'x'.zfill(400000000) }}", "4000000"),
        ("{{ '\t'.expandtabs(400000000) }}", "400000001"),
        ("{{ ('x' * 100000).replace('x', 'y' * 100000) }}", "10000000000"),
        ("{{ ('y' * 1000000) | join('z' * 1000) }}", "1001000000"),
        ("{{ ('z' * 100000).join(['x'] * 100000) }}", ""),
        ("{{ messages | tojson(indent=400000000) }}", ""),
        ("{{ 'x\ny' | indent(400000000) }}", "800000003"),
        ("{% set w = messages | batch(400000000, 0) | list %}", ""),
    ],
)
def test_a_huge_value_is_refused_before_it_is_made(source: str, size: str) -> None:
    said = refusal(source)
    assert f"more than {MOST}; send less" in said, said
    assert f"the chat template makes a value of {size}" in said


@claim("Chat templates run in a sandbox, within a budget of steps", of="security")
@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{% for a in ['x'] * 10000000 %}{% endfor %}",
        "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(60) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' }}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% if a | string | upper %}{% endif %}{% endfor %}",
        "{% for a in range(99999) %}" + "y" * 5000 + "{% endfor %}",
        "{{ range(99999) | map('center', 5000) | list }}",
        DOUBLED.format(start="'x'", twice="a.a ~ a.a", shown=""),
        DOUBLED.format(start="'x'", twice="a.a + a.a", shown=""),
        DOUBLED.format(start="[1]", twice="[a.a, a.a]", shown="{{ a.a }}"),
        DOUBLED.format(start="[1]", twice="[a.a, a.a]", shown="{{ a }}"),
        DOUBLED.format(start="[1]", twice="{'a': a.a, 'b': a.a}", shown="{{ a.a | tojson }}"),
        DOUBLED.format(start="[1]", twice="[a.a, a.a]", shown="{{ a.a | string | length }}"),
        DOUBLED.format(start="2", twice="a.a * a.a", shown=""),
        DOUBLED.format(start="2.5", twice="[a.a] + [a.a]", shown=""),
        DOUBLED.format(start="[1]", twice="[a.a] * 2", shown=""),
        DOUBLED.format(start="[1]", twice="dict(a=a.a, b=a.a)", shown=""),
        DOUBLED.format(start="1", twice="(a.a, a.a)", shown="{{ {a.a: 1} | length }}"),
        DOUBLED.format(start="1", twice="[a.a, a.a]", shown="{{ a.a == a.a | list or a.a in [a.a] }}"),
        "{% set x = 'x' * 9000000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
        "{% set x = ['x' * 9000] * 9 %}{% for i in range(99999) %}{% if x == ['x'] %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% set y = range(90000) | select('odd') | list %}{% endfor %}",
        "{% for i in range(99999) %}{% set y = range(90000).count('x') %}{% endfor %}",
        "{% set x = 'ab ' * 400000 %}{{ x | wordwrap(1) }}",
        "{{ ('http://a.b ' * 50000) | urlize }}",
        "{{ ([0] * 100000) | pprint }}",
        "{{ 'A' * 9000000 | int(base=16) }}{{ 1 | round(100000000, 'ceil') }}",
    ],
)
def test_what_grows_or_loops_without_end_is_ended(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a twentieth of the steps, which a template without an end uses up as surely; the next test takes them all."""
    monkeypatch.setattr(template_engine, "STEPS", FEW)
    said = refusal(source)
    assert f"takes more than {FEW + PER_MESSAGE} steps" in said or "makes a" in said, said


def test_a_conversation_has_all_of_its_steps() -> None:
    assert f"takes more than {STEPS + PER_MESSAGE} steps" in refusal(ENDLESS)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** 99999999999 % 7 }}",  # computed while it compiles, if it is let
        "{% set ns = namespace(x=3) %}{% for i in range(24) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set x = ('9' * 4000) | int %}{{ x - 1 }}",
        "{% set x = ('f' * 90000) | int(base=16) %}{{ x // 7 }}",
    ],
)
def test_an_integer_has_some_thousand_bits_at_most(source: str) -> None:
    assert "bits, more than 4096; send less" in refusal(source)


@pytest.mark.parametrize("method", ["(1).to_bytes(9, 'big')", "'x'.encode().center(9)", "(2.5).hex()"])
def test_numbers_and_bytes_have_no_methods(method: str) -> None:
    assert "is unsafe" in refusal("{{ " + method + " }}")


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
@pytest.mark.parametrize(
    "shown",
    [
        "text.replace('<think>', '')",
        "text.replace('x', 'yy')",
        "text.replace('x', '')",
        "text | replace('<think>', 'y' * 100)",
        "text.split('</think>')[-1].lstrip('\n')",
        "(text ~ '').expandtabs(8)",
        "'-'.join([text, m.role])",
        "text | truncate(255)",
        "text.strip() | trim | upper | lower",
        "text.rsplit('</tool>', 1)[0].removeprefix('x')",
        "text.center(20) ~ text.zfill(3)",
        "'%s: %s' % (m.role, text)",
        "text | tojson",
    ],
)
def test_long_messages_in_a_loop_render_as_without_a_bound(shown: str, size: int) -> None:
    """jinja2 adds the variables in sight to calls in loops. The template did not write them: nothing is priced by them."""
    source = "{% for m in messages %}{% set text = m.content %}{% set all = messages %}{{ " + shown + " }}{% endfor %}"
    chat = [{"role": "user", "content": "ax</think>x\t" * (size // 12)}, {"role": "assistant", "content": "ok"}]
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    assert render(source, chat) == plain.from_string(source).render(messages=chat)


def test_compared_values_and_slices_are_those_of_jinja2() -> None:
    source = (
        "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'abc' }} {{ 4 not in [1, 4] }} {{ [1, (2,)] == [1, (2,)] }} {{ () }}"
        " {{ (1,) }} {{ {'a': [1], 2: {}} }} {{ 'abcdef'[1:-1:2] }} {{ [1, 2, 3][::-1] }} {{ messages[1:] }} {{ 'abc'[:2] }}"
        " {{ 3 is in [3] }} {{ [[2, 1], [1, 2]] | sort }} {{ [1, 2] | select('gt', 1) | list }} {{ 7 // 2 - 1 }} {{ 1 / 2 }}"
        "{% for a, b in [(1, 2)] %} {{ a }}{{ b }}{% endfor %}{% set a, b = 3, 4 %} {{ a != b and a >= 3 and b <= 4 }}"
    )
    assert render(source) == jinja2.Environment().from_string(source).render(messages=HI)


@claim("Chat templates run in a sandbox, within a budget of steps", of="security")
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "does not compile"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "does not compile"),
        ('{{ "\\ud800" }}', "prints a lone surrogate"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_what_templates_cannot_do(source: str, says: str) -> None:
    assert says in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('a' * 9000000) }}",
        "{{ raise_exception([['a' * 1000000] * 900]) }}",
        "{{ messages[0]['" + "a" * 500_000 + "'].b }}",
        "{% " + "a" * 500_000 + " %}",
    ],
)
def test_a_refusal_is_short(source: str) -> None:
    """It is in an answer and in the log."""
    assert 10 < len(refusal(source)) < 1500


def test_what_templates_of_checkpoints_do() -> None:
    """The text that jinja2 makes without a bound."""
    source = (
        "{%- macro turn(m) -%}{{ '<' ~ m.role ~ '>' + m['content'] | trim }}{%- endmacro -%}"
        "{{ bos_token }}{%- set ns = namespace(seen=false) -%}"
        "{%- for m in messages if m.role != 'tool' -%}{{ turn(m) }}{{ loop.index0 }}{%- if loop.last -%}!{%- endif -%}"
        "{%- set ns.seen = m.content.split('</think>')[-1].lstrip('x') -%}{%- endfor -%}"
        "{{ ns.seen }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}"
        "{{ '%s-%05d' % ('a', 7) }}{{ '{:>3}'.format(1) }}{{ '-' * 3 }}{{ [1] + [2] }}{{ 7 % 4 }}{{ 2 ** 10 }}"
        "{{ messages | length }}{{ messages[0] | tojson(indent=1) }}{% generation %}g{% endgeneration %}"
        "{% for a in [[1, [2]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}"
    )
    chat = [{"role": "user", "content": " a</think>xb "}, {"role": "tool", "content": ""}]
    shown = json.dumps(chat[0], indent=1)
    want = f"<s><user>a</think>xb0!b  a</think>xb a-00007  1---[1, 2]310242{shown}g12"
    assert render(source, chat) == want


def test_long_conversations_and_long_messages_have_room() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim }}{{ messages | length }}{% endfor %}"
    assert len(render(source, HI * 20_000)) == 20_000 * len("<user>hi20000")
    assert len(render(source, [{"role": "user", "content": "x" * 4_000_000}])) == 4_000_007


def test_threads_have_a_budget_each() -> None:
    """Of one template; what another thread has used up is not missed here."""
    template = ChatTemplate("{% for i in range(n) %}{% endfor %}ok", {})
    how = Rendering(begin=True, proceed=False, variables={"n": 90_000}, longest=10)
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(template.render(HI, how))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["ok"] * 8


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("chat_template.jinja", "{{ 'x' * 400000000 }}", "makes a value of 400000000 characters"),
        ("tokenizer_config.json", json.dumps({"chat_template": "{{ 'x' * 400000000 }}"}), "makes a value of 400000000 char"),
        ("chat_template.jinja", "{% for a in range(99999) %}{% for b in range(99) %}{% endfor %}{% endfor %}", "takes more"),
        ("chat_template.jinja", "x" * (LONGEST + 1), f"has {LONGEST + 1} characters, more than {LONGEST}"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("tokenizer_config.json", "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_checkpoint_whose_template_does_too_much_is_refused(tmp_path: Path, file: str, text: Any, says: str) -> None:
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match=says) as caught:
        ChatTemplate.load(CheckpointFiles(tmp_path), {})
    assert str(tmp_path / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_that_refuses_a_plain_conversation_or_does_not_compile_is_served(tmp_path: Path) -> None:
    for source in ("{{ raise_exception('tools only') }}", "{% if %}"):
        (tmp_path / "chat_template.jinja").write_text(source)
        assert ChatTemplate.load(CheckpointFiles(tmp_path), {}) is not None

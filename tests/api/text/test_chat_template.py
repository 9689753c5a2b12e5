"""The content of messages reaches templates in the form that they take, as transformers passes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.text.chat_template import ChatTemplate, Rendering
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.api.text.test_tokenizer import folder_with, oracle

WHOLE = Rendering(begin=True, proceed=False, variables={}, longest=1000)
FINAL = Rendering(begin=False, proceed=True, variables={}, longest=1000)
LOOP = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }};{% endif %}{% endfor %}"
TEXTS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
PARTS = "{% for m in messages %}[{{ m.role }}]" + LOOP + "{% endfor %}"
BOTH = (
    "{% macro show(m) %}{% if m.content is string %}{{ m.content }}{% else %}" + LOOP + "{% endif %}{% endmacro %}"
    "{% for m in messages %}[{{ m.role }}]{{ show(m) }}{% endfor %}"
)
FIRST = "{% for m in messages %}{{ m.role }}: {{ m['content'][0]['text'] }}\n{% endfor %}"
BY_ROLE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'system' %}{{ m.content + '!' }}{% else %}" + LOOP + "{% endif %}"
    "{% endfor %}"
)
STRICT = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + PARTS
NOTHING = "{% for m in messages %}[{{ m.role }}]{% endfor %}"


def text(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


def load(folder: Path, template: str) -> ChatTemplate:
    folder_with(folder, chat_template=template)
    found = ChatTemplate.load(CheckpointFiles(folder), {})
    assert found is not None
    return found


CASES: dict[str, tuple[str, str, list[Any], list[Any]]] = {  # template, role, content as sent, as the template takes it
    "texts, a text": (TEXTS, "user", ["question "], ["question "]),
    "texts, parts": (TEXTS, "user", [text("one", "two")], ["one\ntwo"]),
    "parts, a text": (PARTS, "user", ["question"], [text("question")]),
    "parts, parts": (PARTS, "user", [text("one", "two")], [text("one", "two")]),
    "both, a text": (BOTH, "user", ["question"], ["question"]),
    "both, parts": (BOTH, "user", [text("one", "two")], [text("one", "two")]),
    "the first part": (FIRST, "user", ["question", text("one")], [text("question"), text("one")]),
    "an assistant's": (PARTS, "assistant", ["answer"], [text("answer")]),
    "another role's": (PARTS, "ipython", ["out"], [text("out")]),
    "a system's text": (BY_ROLE, "system", [text("be", "kind")], ["be\nkind"]),
    "a user's parts beside it": (BY_ROLE, "user", ["hi"], [text("hi")]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_content_is_given_in_the_form_that_a_template_takes(
    tmp_path: Path, case: tuple[str, str, list[Any], list[Any]]
) -> None:
    template, role, sent, taken = case
    found = load(tmp_path, template)
    given, fitting = ([{"role": role, "content": content} for content in contents] for contents in (sent, taken))
    wanted = oracle(tmp_path).apply_chat_template(fitting, tokenize=False, add_generation_prompt=True)
    assert found.render(given, WHOLE) == wanted


def test_a_template_that_refuses_a_lone_user_is_asked_with_a_system_message(tmp_path: Path) -> None:
    found = load(tmp_path, STRICT)
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "question"}]
    assert found.render(chat, WHOLE) == "[system]be kind;[user]question;"
    with pytest.raises(ApiError, match="system first"):
        found.render(chat[1:], WHOLE)


def test_the_last_message_is_continued_in_parts(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]" + LOOP.replace("};", "}") + "</s>{% endfor %}"
    found = load(tmp_path, template)
    for content in ("so it", text("so", " it")):
        chat = [{"role": "user", "content": text("go")}, {"role": "assistant", "content": content}]
        assert found.render(chat, FINAL) == "[user]go</s>[assistant]so it"
    wanted = oracle(tmp_path).apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert found.render(chat, FINAL) == wanted


def test_a_template_that_prints_no_content_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for template in (TEXTS, PARTS, STRICT, "{{ raise_exception('never') }}", "{% broken"):
            load(tmp_path, template)
        assert caplog.messages == []
        load(tmp_path, NOTHING)
    assert "prints no text of a user's message" in caplog.messages[0]
    assert str(tmp_path) in caplog.messages[0]


@pytest.mark.parametrize("role", ["function", "ipython", "document", "developer", "user"])
def test_which_roles_there_are_is_for_the_template_to_judge(tmp_path: Path, role: str) -> None:
    chat = [{"role": role, "content": "x"}]
    known = "{% if messages[0].role not in ['function', 'ipython', 'document', 'developer', 'user'] %}{{ no }}{% endif %}"
    found = load(tmp_path, known + TEXTS)
    assert found.render(chat, WHOLE) == oracle(tmp_path).apply_chat_template(chat, tokenize=False)
    strict = "{% if messages[0].role not in ['system', 'user'] %}{{ raise_exception('what role?') }}{% endif %}" + TEXTS
    found = load(tmp_path, strict)
    if role == "developer":  # a template that does not know the newer name knows the older
        assert found.render(chat, WHOLE) == "[system]x"
    elif role != "user":
        with pytest.raises(ApiError, match="what role"):
            found.render(chat, WHOLE)


def test_the_reasoning_of_an_assistant_is_printed_where_a_template_does(tmp_path: Path) -> None:
    thought = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    template = "{% for m in messages %}" + thought + "{{ m.content }}{% endfor %}"
    chat = [{"role": "assistant", "content": "a", "reasoning_content": "because"}, {"role": "user", "content": "b"}]
    found = load(tmp_path, template)
    assert found.render(chat, WHOLE) == oracle(tmp_path).apply_chat_template(chat, tokenize=False)

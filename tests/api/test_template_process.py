"""Templates that requests bring: in a process apart, whatever they do there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from blockwright.api.template_engine import Rendering, TemplateFault
from blockwright.api.template_process import TemplateProcess
from blockwright.tests.waiting import until

HI = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SECONDS, MEMORY = 0.5, 256 << 20


@pytest.fixture
async def templates() -> AsyncIterator[TemplateProcess]:
    made = TemplateProcess(SECONDS, MEMORY)
    yield made
    await made.close()


def render(templates: TemplateProcess, source: str, **options: Any) -> Any:
    how = Rendering(**{"begin": True, "proceed": False, "variables": {}, "longest": 1000, **options})
    return templates.render(source, {"bos_token": "<s>"}, HI, how)


async def refused(templates: TemplateProcess, source: str, **options: Any) -> tuple[str, str]:
    with pytest.raises(TemplateFault) as caught:
        await render(templates, source, **options)
    return caught.value.param, caught.value.message


async def test_a_conversation_is_rendered(templates: TemplateProcess) -> None:
    own = "{{ bos_token }}{{ shout }}{{ messages[0].content }}{{ add_generation_prompt }}"
    assert await render(templates, own, begin=False, variables={"shout": "\u2028\U0001f600"}) == "<s>\u2028\U0001f600hiFalse"
    assert await render(templates, "{{ messages[0].content }} tail", proceed=True) == "hi"


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{{ 'x' * 400000000 }}",
        "{{ '%0400000000d' % 7 }}",
        "{{ 9 ** 99999999 % 7 }}",  # computed while it compiles
        "{% set all = namespace(a='x') %}{% for i in range(40) %}{% set all.a = all.a ~ all.a %}{% endfor %}",
    ],
)
async def test_one_that_takes_too_much_is_ended_and_the_loop_goes_on(templates: TemplateProcess, source: str) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    assert await refused(templates, source) == (
        "chat_template",
        "the chat template takes more than 0.5 s or 256 MiB; let it loop less",
    )
    beside.cancel()
    assert turns > 10  # and none where the loop waits for it
    assert await render(templates, "{{ messages[0].content }}") == "hi", "in another process"


@pytest.mark.parametrize(
    ("source", "param", "says"),
    [
        ("{% if %}", "chat_template", "does not compile"),
        ("{{ 'x' * 1001 }}", "chat_template", "makes 1001 characters of these messages, more than max_body (1000)"),
        ('{{ "\\ud800" }}', "chat_template", "prints a lone surrogate"),
        ("{{ raise_exception('not so') }}", "messages", "not so"),
        ("{{ ''.__class__.__mro__ }}", "messages", "is unsafe"),
        ("{{ messages.append(1) }}", "messages", "is unsafe"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "messages", "recursion"),
    ],
)
async def test_what_templates_cannot_do(templates: TemplateProcess, source: str, param: str, says: str) -> None:
    blamed, message = await refused(templates, source)
    assert (blamed, says in message) == (param, True), message
    process = templates._process
    assert await render(templates, "x") == "x"
    assert templates._process is process, "it did not end"


async def test_a_client_that_leaves_does_not_give_its_answer_to_the_next(templates: TemplateProcess) -> None:
    assert await render(templates, "x") == "x"
    first = asyncio.create_task(render(templates, ENDLESS))
    second = asyncio.create_task(render(templates, "mine"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "mine"
    with contextlib.suppress(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_one_that_was_ended_while_idle_is_replaced(loop: str) -> None:
    async def ended() -> None:
        made = TemplateProcess(SECONDS, MEMORY)
        await render(made, "a")
        process = made._process
        assert process is not None
        process.kill()
        await process.wait()
        await until(lambda: process.stdin is not None and process.stdin.is_closing())
        assert await render(made, "{{ messages[0].content }}") == "hi"
        await made.close()

    (uvloop if loop == "uvloop" else asyncio).run(ended())


async def test_it_ends_with_its_gateway() -> None:
    """Whose end closes the pipe, however it comes."""
    templates = TemplateProcess()
    assert await render(templates, "x") == "x"
    process = templates._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0
    await templates.close()

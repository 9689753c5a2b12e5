"""Bodies and answers that take long to check or write: the event loop does something else meanwhile."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from blockwright.api.openai import bodies as openai_schema
from blockwright.api.text import chat_template, tokenizer
from blockwright.tests.api.fake_port import one_by_one

MANY = 20_000


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Of the things below, those that were done on the loop's own thread."""
    found: set[str] = set()
    here = threading.get_ident()
    for owner, name in (
        (openai_schema, "_message"),
        (chat_template.ChatTemplate, "_render"),
        (tokenizer.TextCodec, "token_text"),
        (tokenizer.TextCodec, "decode"),
    ):
        original = getattr(owner, name)

        def noting(*args: Any, name: str = name, original: Any = original, **more: Any) -> Any:
            if threading.get_ident() == here:
                found.add(name)
            return original(*args, **more)

        monkeypatch.setattr(owner, name, noting)
    return found


async def test_a_long_conversation(serve: Any, threads: set[str]) -> None:
    http, _ = await serve(lambda generation: one_by_one([70]))
    messages = [{"role": "user", "content": "hi"}] * MANY
    answer = await http.post("/v1/chat/completions", json={"messages": messages})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert threads == set()
    assert (await http.post("/v1/chat/completions", json={"messages": messages[:1]})).status == 200
    assert threads == {"_message", "_render"}, "a short one is not worth a thread"


async def test_many_tokens(serve: Any, threads: set[str], codec: Any) -> None:
    http, _ = await serve()
    answer = await http.post("/tokenize", json={"prompt": "a" * MANY, "return_token_strs": True})
    body = await answer.json()
    assert (body["count"], set(body["token_strs"])) == (MANY, {"a"})
    answer = await http.post("/detokenize", data=json.dumps({"tokens": body["tokens"]}))
    assert (await answer.json())["prompt"] == "a" * MANY
    assert threads == set()

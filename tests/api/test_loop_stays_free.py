"""Nothing that a request, a template, a tokenizer or an adapter may be holds the loop of a gateway for more than 0.1 s.

A probe ticks on the loop beside each. What it compares is processor time of the process between two ticks, for another
program that has the core is no fault of ours; the best of ten tries counts.

Building a large tokenizer is not among the rows: the ``tokenizers`` library keeps the interpreter lock from beginning to end
(``from_str``, ``from_buffer``, ``from_file``, and when a pickled one is restored), 0.5 to 1 s for 128,000 tokens.
docs/operations.md says when that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import io
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.text.tokenizer import TextCodec
from blockwright.api.text.tokenizer_process import LARGE
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.patterns import matches
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.sweep.events import PromptScored
from blockwright.tests.api.fake_port import EOS, make_folder, one_by_one, with_logprobs
from blockwright.tests.api.raw import listening
from blockwright.tests.api.text.turn.chat_templates import QWEN3
from blockwright.tests.claims import claim
from blockwright.tests.parts import some

MOST = 0.1  # seconds
JSON = {"Content-Type": "application/json"}
LOOK_AHEAD = (
    "{% for m in messages %}{% set ns = namespace(later=false) %}{% for k in messages[loop.index0 + 1:] %}"
    "{% if k.role == 'user' %}{% set ns.later = true %}{% endif %}{% endfor %}{{ m.role }}: {{ m.content }}{% endfor %}"
)
EACH = "{% for m in messages %}{% set text = m.content %}{{ "
CALL = {"function": {"name": "f", "arguments": "[" + ",".join(["1.5"] * 1_200_000) + "]"}}
TURNS: list[dict[str, Any]] = [{"role": ("user", "assistant")[i % 2], "content": "word"} for i in range(999)]


@pytest.fixture(autouse=True)
def frozen_heap() -> Iterator[None]:
    """Keep what tests have imported out of collections, as the server does when it is ready."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def longest_hold(work: Callable[[], Awaitable[object]]) -> float:
    """Return the longest time, of this process's processors, between two ticks of the loop while ``work`` is done."""
    longest, task = 0.0, asyncio.ensure_future(work())
    before = time.process_time()
    while not task.done():
        await asyncio.sleep(0.001)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    await task
    return longest


async def check_free(work: Callable[[], Awaitable[object]]) -> None:
    found = []
    for _ in range(10):
        found.append(await longest_hold(work))
        if found[-1] < MOST:
            return
    assert min(found) < MOST, found


BODIES: dict[str, Callable[[], str]] = {
    "many prompts": lambda: json.dumps({"model": "tiny", "prompt": ["one two three " * 280] * 1024}),
    "echoed prompts": lambda: json.dumps(
        {"model": "tiny", "echo": True, "logprobs": 1, "max_tokens": 1, "prompt": ["one two three " * 20] * 1024}
    ),
    "echoed ids": lambda: json.dumps({"model": "tiny", "echo": True, "max_tokens": 1, "prompt": [5] * 200_000}),
    "bad words": lambda: json.dumps({"model": "tiny", "prompt": "a", "bad_words": ["one two, three" * 70] * 256}),
    "many tokens": lambda: json.dumps({"model": "tiny", "prompt": "one, two: [three] " * 70_000, "return_token_strs": True}),
    "an echoed text": lambda: json.dumps(
        {"model": "tiny", "echo": True, "logprobs": 1, "max_tokens": 1, "prompt": "one, two: [three] " * 70_000}
    ),
    "an echo of few ids each": lambda: json.dumps(
        {"model": "tiny", "echo": True, "max_tokens": 1, "prompt": [[5, 6, 7]] * 1024}
    ),
    "a long name": lambda: json.dumps({"model": "t" * 5_000_000, "prompt": "a"}),
    "arguments": lambda: json.dumps({"messages": [{"role": "assistant", "tool_calls": [CALL]}], "prompt": "a"}),
    "members": lambda: json.dumps({f"k{i}": 0 for i in range(300_000)}),
    "lists": lambda: '{"prompt": [' + ",".join(["[]"] * 900_000) + "]}",
    "nested": lambda: '{"prompt": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}",
    "nulls": lambda: '{"prompt": [' + ",".join(["null"] * 900_000) + "]}",
    "floats": lambda: '{"prompt": [' + ",".join(["1.23456789012345"] * 300_000) + "]}",
    "strings": lambda: '{"prompt": [' + ",".join(['"a"'] * 1_000_000) + "]}",
    "token ids": lambda: json.dumps({"model": "tiny", "prompt": [list(range(8000))] * 30}),
    "long numbers": lambda: '{"seed": [' + ",".join(["9" * 4000] * 1300) + "]}",
    "a long text": lambda: json.dumps({"model": "tiny", "prompt": "one, two: [three] " * 20_000}),
    "an escaped text": lambda: json.dumps({"model": "tiny", "prompt": 'a"\\,:[' * 60_000}),
    "a broken text": lambda: '{"prompt": "' + '\\"' * 2_000_000 + ",:" * 100_000,
}


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("kind", some(BODIES, "many prompts", "members", "nulls", "nested", "a broken text"))
async def test_bodies(serve: Any, kind: str) -> None:
    client, _ = await serve(lambda generation: one_by_one([EOS]), settings={"max_model_len": 0})
    body = BODIES[kind]().encode()
    assert len(body) < 5_700_000

    async def post() -> None:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            async with client.post(path, data=io.BytesIO(body), headers=JSON) as answer:
                assert answer.status in (200, 400, 404, 413), await answer.text()
                await answer.read()

    await check_free(post)


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("stream", [False, True])
async def test_long_answers(serve: Any, stream: bool) -> None:
    """An echo of many tokens with their log-probabilities."""
    count = 60_000
    entries = [TokenLogprob(-0.5, [(3 + i, -1.0 - i) for i in range(5)], 1)] * (count - 1)
    client, port = await serve(lambda generation: [PromptScored("gw0", "r", 1, 1, entries), *with_logprobs([70], 5)])
    port.infos = [replace(port.infos[0], max_length=2 * count)]
    body = {"prompt": [5] * count, "echo": True, "logprobs": 5, "max_tokens": 1, "stream": stream}

    async def post() -> None:
        async with client.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for _ in answer.content.iter_any():
                continue

    await check_free(post)


RESPONSES: dict[str, Callable[[], dict[str, Any]]] = {
    "many items": lambda: {"input": [{"role": ("user", "assistant")[i % 2], "content": "word"} for i in range(10_000)]},
    "many parts": lambda: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "word"}] * 20_000}]},
    "many calls": lambda: {
        "input": [{"type": "function_call", "call_id": f"{i}", "name": "f", "arguments": "{}"} for i in range(10_000)]
    },
    "instructions": lambda: {"input": "a", "instructions": "one, two: [three] " * 70_000},
    "a repeated choice": lambda: {
        "input": "a",
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}] * 20_000},
    },
    "unknown fields": lambda: {"input": [{"role": "user", "content": "a", **{f"k{i}": 0 for i in range(30_000)}}]},
}


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("kind", some(RESPONSES, "many items"))
@pytest.mark.parametrize("stream", [False, True])
async def test_responses(serve: Any, tmp_path: Path, kind: str, stream: bool) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(QWEN3)
    client, port = await serve(
        lambda generation: one_by_one([70, EOS], "stop"), settings={"max_model_len": 0}, folder=folder
    )
    port.infos = [replace(port.infos[0], max_length=4_000_000, rooms=(8_000_000,))]
    body = json.dumps({**RESPONSES[kind](), "stream": stream}).encode()

    async def post() -> None:
        async with client.post("/v1/responses", data=io.BytesIO(body), headers=JSON) as answer:
            assert answer.status == 200, (await answer.text())[:300]
            async for _ in answer.content.iter_any():
                continue

    await check_free(post)


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
async def test_other_encodings(serve: Any, encoding: str) -> None:
    """A body that is not UTF-8 is refused: its values could not be counted."""
    client, _ = await serve(settings={"max_model_len": 0})
    body = ('{"a": "\\"", "prompt": [' + ",".join(["[]"] * 400_000) + "]}").encode(encoding)

    async def post() -> None:
        async with client.post("/v1/completions", data=io.BytesIO(body), headers=JSON) as answer:
            assert answer.status == 400
            assert "not valid JSON" in await answer.text()

    await check_free(post)


TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "a repeated group": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        "a" * 30 + "x",
    ),
    "a growing text": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 100_000}},
        "aaaaaaaa",
    ),
}


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("kind", TOKENIZERS)
async def test_tokenizers(serve: Any, tmp_path: Path, kind: str) -> None:
    """Short texts that a tokenizer takes long for."""
    parts, text = TOKENIZERS[kind]
    folder = make_folder(tmp_path / "m")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    client, _ = await serve(folder=folder)

    async def post() -> None:
        async with client.post("/tokenize", json={"prompt": text}) as answer:
            assert answer.status in (200, 400), await answer.text()

    await client.post("/tokenize", json={"prompt": "x"})  # it is loaded now
    await check_free(post)


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("count", [10_500, 129_536])
async def test_large_tokenizers(tmp_path: Path, count: int) -> None:
    """A vocabulary is loaded: the largest one that is built in this process, and one of 130,000 tokens."""
    folder = make_folder(tmp_path / "m")
    chars = [chr(0x4E00 + i) for i in range(256)]
    pairs = [(a, b) for a in chars for b in chars]
    merges = [*pairs, *((a + b, a) for a, b in pairs[:64_000])][:count]
    words = [*chars, *(a + b for a, b in merges)]
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": [list(pair) for pair in merges]}
    file = folder / "tokenizer.json"
    text = json.dumps({**json.loads(file.read_text()), "model": model, "added_tokens": []}, ensure_ascii=False)
    file.write_text(text)
    assert len(text) < LARGE or count > 129_000
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')

    async def load() -> None:
        codec = await asyncio.to_thread(TextCodec.load, CheckpointFiles(folder))
        assert codec.size == len(words)

    await check_free(load)


TEMPLATES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "look ahead": (LOOK_AHEAD, TURNS),
    "wordwrap": ("{{ ('ab ' * 400000) | wordwrap(1) }}", TURNS[:1]),
    "urlize": ("{{ ('http://a.b ' * 50000) | urlize }}", TURNS[:1]),
    "pprint": ("{{ ([[0] * 10000] * 10) | pprint }}", TURNS[:1]),
    "title": (EACH + "text | title }}{% endfor %}", [{"role": "user", "content": "ab " * 100_000}]),
    "sort": (EACH + "text | sort | length }}{% endfor %}", [{"role": "user", "content": "ba" * 50_000}]),
    "list": (EACH + "text | list | length }}{% endfor %}", [{"role": "user", "content": "é€" * 400_000}]),
    "lower": (EACH + "text | lower | upper | length }}{% endfor %}", [{"role": "user", "content": "İß" * 400_000}]),
    "split": (EACH + "text.split() | length }}{% endfor %}", [{"role": "user", "content": "a " * 500_000}]),
    "replace": (EACH + "text.replace('a', 'bb') | length }}{% endfor %}", [{"role": "user", "content": "a" * 1_000_000}]),
    "tojson": (EACH + "text | tojson | length }}{% endfor %}", [{"role": "user", "content": "<\x01" * 500_000}]),
    "doubled": (
        "{% set ns = namespace(x='ab') %}{% for i in range(30) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        TURNS[:1],
    ),
    "doubled lists": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        TURNS[:1],
    ),
    "squared": (
        "{% set ns = namespace(x=3) %}{% for i in range(24) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"
        "{% for i in range(40) %}{% set y = ns.x * ns.x %}{% endfor %}ok",
        TURNS[:1],
    ),
    "from the end": ("{{ ('a' * 500000).rfind('ab' + 'a' * 200000) }}", TURNS[:1]),
    "split from the end": ("{{ ('a' * 500000).rsplit('ab' + 'a' * 200000) | length }}", TURNS[:1]),
    "stripped": ("{{ ('é' * 300000).strip('bcdefghijklmnopqrstuvwȀ' * 5000 + 'é') | length }}", TURNS[:1]),
    "trim": ("{{ ('é' * 300000) | trim('bcdefghijklmnopqrstuvwȀ' * 5000 + 'é') | length }}", TURNS[:1]),
    "punycode": ("{{ ('9' * 100000).encode().decode('punycode') }}", TURNS[:1]),
    "named characters": ("{{ ('é' * 2000000).encode('ascii', 'namereplace') | length }}", TURNS[:1]),
    "unpacked": ("{% macro f() %}{{ varargs | length }}{% endmacro %}{{ f(*('a' * 9000000)) }}", TURNS[:1]),
    "left out": ("{% for i in range(900) %}{% for c in range(99999) if c < 0 %}{% endfor %}{% endfor %}", TURNS[:1]),
    "a date": ("{{ strftime_now('%A' * 5000000) | length }}", TURNS[:1]),
    "slices": ("{% set x = 'x' * 9000000 %}{% for i in range(9999) %}{% set y = x[1:] %}{% endfor %}", TURNS[:1]),
}


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("kind", some(TEMPLATES, "sort", "tojson", "doubled", "unpacked", "slices"))
async def test_templates(serve: Any, tmp_path: Path, kind: str) -> None:
    """At the load of a checkpoint, which may refuse it, and when a conversation is rendered."""
    source, messages = TEMPLATES[kind]
    folder = make_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{% if messages[0].content != 'hello' %}" + source + "{% endif %}")
    client, _ = await serve(folder=folder)
    body = json.dumps({"messages": messages}).encode()

    async def post() -> None:
        async with client.post("/tokenize", data=io.BytesIO(body), headers=JSON) as answer:
            assert answer.status in (200, 400), await answer.text()
            await answer.read()

    await check_free(post)


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
async def test_adapters() -> None:
    """Expressions that name modules, which ``re`` may match for ever."""
    patterns = ["(a*)*b", "(((a+)+)+)+$", "(a|aa)+", "(.*)*" * 20, "a{1,400}" * 30]

    async def match() -> None:
        for pattern in patterns:
            try:
                await asyncio.to_thread(matches, "adapter_config.json", pattern, "model.layers.0." + "a" * 60, anywhere=True)
            except CheckpointError:
                continue

    await check_free(match)


FORM_HEAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 60000000\r\n"
)
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
GZIP = b"Content-Encoding: gzip\r\n"
PACKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n" + GZIP + b"\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
UPLOADS: dict[str, Callable[[], bytes]] = {
    "chunks of a byte": lambda: CHUNKED + b"1\r\n \r\n" * 400_000 + b"0\r\n\r\n",
    "lines before the form": lambda: FORM_HEAD + b"\r\n" + b"\r\n" * 400_000,
    "lines after the form": lambda: FORM_HEAD + b"\r\n" + FILE + b"{}\r\n--x--\r\n" + b"\r\n" * 400_000,
    "empty lines": lambda: FORM_HEAD + b"\r\n" + FILE + b"\n" * 800_000,
    "short lines": lambda: FORM_HEAD + b"\r\n" + FILE + b"{}\n" * 400_000,
    "headers of a part": lambda: FORM_HEAD + b"\r\n--x\r\n" + b"a: b\r\n" * 200_000,
    "a packed form": lambda: FORM_HEAD + GZIP + b"\r\n" + gzip.compress(b"\r\n" * 50_000_000, 1),
    "a packed body": lambda: PACKED % b"/v1/completions" + gzip.compress(b" " * 150_000_000, 1),
    "a packed body that no handler reads": lambda: PACKED % b"/nothing" + gzip.compress(b" " * 150_000_000, 1),
}


@claim("Long bodies, templates and adapters hold the event loop for less than 0.1 s", of="http-api")
@pytest.mark.parametrize("kind", some(UPLOADS, "chunks of a byte", "short lines", "a packed body"))
async def test_uploads_and_packed_bodies(folder: Path, tmp_path: Path, kind: str) -> None:
    """Bodies that never end: what has arrived of them must be read in pieces."""
    body = UPLOADS[kind]()
    async with listening(folder, lambda generation: (), batch_dir=str(tmp_path / "batches")) as server:

        async def post() -> None:
            async with server.connect() as (reader, writer):
                writer.write(body)
                writer.write_eof()
                with contextlib.suppress(ConnectionError):  # it is closed before all of the body is read
                    await reader.read()

        await check_free(post)

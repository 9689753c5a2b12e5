"""Stop strings are found in what the model says, whatever of it is shown; offsets point into the text that is shown."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from blockwright.actors.gateway.port import Generation
from blockwright.api.text.tokenizer import TextCodec
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.tests.api.fake_port import (
    EOS,
    Script,
    events,
    make_folder,
    prompt_scored,
    tokens_emitted,
    with_logprobs,
)
from blockwright.tests.api.text.test_tokenizer_build import write_sentencepiece

URL = "/v1/completions"
UNK, BOS = 0, 1


def saying(tokens: Sequence[int]) -> Script:
    """A token at a time, and an end at an end token."""

    def ending(generation: Generation, at: int) -> str:
        return "stop" if tokens[at] in generation.stop_tokens else "length" if at == len(tokens) - 1 else ""

    def said(generation: Generation) -> list[TokensEmitted]:
        scores = [TokenLogprob(-0.5, [])] if generation.sampling.logprobs >= 0 else []
        return [tokens_emitted([token], scores, ending(generation, at)) for at, token in enumerate(tokens)]

    return said


CASES: dict[str, tuple[str, list[str], str, Any, str]] = {  # said, stop strings, text, stop_reason, finish_reason
    "a special token": ("the<s>end", ["<s>"], "the", "<s>", "stop"),
    "it and text": ("the<s>end", ["<s>e"], "the", "<s>e", "stop"),
    "text and it": ("the<s>end", ["he<s>"], "t", "he<s>", "stop"),
    "over it": ("the<s>end", ["he<s>en"], "t", "he<s>en", "stop"),
    "two": ("the<s><unk>end", ["<s><unk>"], "the", "<s><unk>", "stop"),
    "a part of its name": ("the<s>end", ["s>"], "the", "s>", "stop"),
    "the end token": ("the</s>", ["</s>"], "the", "</s>", "stop"),
    "text and the end token": ("the</s>", ["e</s>"], "th", "e</s>", "stop"),
    "not there": ("the<s>end", ["<unk>"], "theend", None, "length"),
    "not over what is hidden": ("the<s>end", ["ee"], "theend", None, "length"),
    "half of it is held": ("a<s>b<s>", ["<s>x", "b<s>y"], "ab", None, "length"),
    "the first one": ("a<s>b<unk>", ["<unk>", "b"], "a", "b", "stop"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("shown", [False, True])
async def test_stop_strings_are_found_in_what_is_said(
    serve: Any, codec: TextCodec, case: tuple[str, list[str], str, Any, str], shown: bool
) -> None:
    said, stops, text, reason, finish = case
    tokens = codec.encode(said, special=False)
    client, port = await serve(saying(tokens))
    fields = {"prompt": "a", "stop": stops, "skip_special_tokens": not shown, "logprobs": 1}
    choice = (await (await client.post(URL, json=fields)).json())["choices"][0]
    if shown:
        whole = said.removesuffix("</s>") if finish == "length" or reason is None else said
        text = whole[: whole.index(reason)] if reason is not None else whole
    assert (choice["text"], choice["stop_reason"], choice["finish_reason"]) == (text, reason, finish)
    assert port.streams[0].stopped == (reason is not None)
    chunks = [e["choices"][0] for e in events(await (await client.post(URL, json={**fields, "stream": True})).read())]
    assert "".join(chunk["text"] for chunk in chunks) == text
    assert chunks[-1]["stop_reason"] == reason
    answer = await client.post(URL, json={**fields, "include_stop_str_in_output": True})
    assert (await answer.json())["choices"][0]["text"] == text + (reason or "")
    answer = await client.post(URL, json={**fields, "min_tokens": len(tokens)})
    assert (await answer.json())["choices"][0]["stop_reason"] is None


async def test_an_end_token_is_a_stop_string_even_where_ends_are_ignored(serve: Any, codec: TextCodec) -> None:
    client, port = await serve(saying([*codec.encode("a", special=False), EOS, *codec.encode("b", special=False)]))
    choice = (await (await client.post(URL, json={"prompt": "a", "stop": "</s>", "ignore_eos": True})).json())["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("a", "</s>")
    assert port.streams[0].generation.stop_tokens == []
    choice = (await (await client.post(URL, json={"prompt": "a"})).json())["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("a", None)


@pytest.mark.parametrize("split", [False, True])
async def test_a_special_token_is_a_bad_word(serve: Any, tmp_path: Path, split: bool) -> None:
    folder = make_folder(tmp_path / "m")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "split_special_tokens": split}))
    client, port = await serve(saying([5]), folder=folder)
    await client.post(URL, json={"prompt": "a", "bad_words": ["</s>", "the"]})
    assert port.streams[0].generation.sampling.rules.banned[0] == [EOS]


async def echoed(client: Any, prompt: Any, **fields: Any) -> tuple[str, list[str], list[int]]:
    """The text, its tokens and where they begin."""
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2, **fields}
    choice = (await (await client.post(URL, json=body)).json())["choices"][0]
    columns = choice["logprobs"]
    return choice["text"], columns["tokens"], columns["text_offset"]


def check(text: str, tokens: Sequence[str], offsets: Sequence[int], hidden: int = 0) -> None:
    """Each token that has a text stands where its offset points; ``hidden``: so many do not show."""
    missing = []
    for token, offset in zip(tokens, offsets, strict=True):
        assert 0 <= offset <= len(text)
        if not token.startswith("bytes:") and text[offset : offset + len(token)] != token:
            missing.append((token, offset))
    assert len(missing) == hidden, missing
    assert list(offsets) == sorted(offsets)


PROMPTS = ["<s>hello</s>x", " the  end\n the", "a\u20acb \U0001f642</s> the", "<s><s>", "x </s>  y", "\tthe on"]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("trimmed", [False, True])
async def test_offsets_of_an_echo_point_into_the_text_that_was_sent(
    serve: Any, tmp_path: Path, prompt: str, trimmed: bool
) -> None:
    folder = make_folder(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if trimmed:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        tokenizer.save(str(folder / "tokenizer.json"))
    codec = TextCodec.load(CheckpointFiles(folder))
    answer = codec.encode("on \u20ac", special=False)[:2]
    client, _ = await serve(lambda g: with_prompt_logprobs(g, answer), folder=folder)
    text, tokens, offsets = await echoed(client, prompt)
    assert text.startswith(prompt)
    check(text, tokens, offsets)
    parts = tokenizer.encode(prompt, add_special_tokens=False)
    if not trimmed:
        assert offsets[: len(parts.ids)] == [start for start, _ in parts.offsets]


def with_prompt_logprobs(generation: Generation, tokens: Sequence[int]) -> list[Any]:
    scored = [TokenLogprob(-0.5, []) for _ in generation.prompt[1:]]
    return [prompt_scored(scored), *with_logprobs(list(tokens), 0)]


async def test_a_token_that_the_tokenizer_adds_has_its_place(serve: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=None, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    client, _ = await serve(lambda g: with_prompt_logprobs(g, [5, 6]), folder=folder)
    text, tokens, offsets = await echoed(client, "<s>the")
    assert tokens[:2] == ["<s>", "<s>"]
    assert (offsets[0], offsets[1], offsets[2]) == (0, 0, 3)
    assert offsets[tokens.index("</s>")] == len("<s>the")
    text, tokens, offsets = await echoed(client, "<s>the", add_special_tokens=False)
    check(text, tokens, offsets)


@pytest.mark.parametrize("name", ["LlamaTokenizer", "TokenizersBackend", "nfc"])
def test_offsets_of_tokenizers_that_change_the_text(tmp_path: Path, name: str) -> None:
    if name == "nfc":
        tokenizer = Tokenizer.from_file(str(make_folder(tmp_path) / "tokenizer.json"))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    else:
        write_sentencepiece(tmp_path, tokenizer_class=name)
    codec = TextCodec.load(CheckpointFiles(tmp_path))
    for text in ("e\u0301 the</s>on", "the leading</s> hell\u20ac", " the", "<s>  the <s>the"):
        offsets = codec.offsets(text, special=False)
        for token, offset in zip(codec.encode(text, special=False), offsets, strict=True):
            own, there = (
                codec.whole_text(token),
                text[offset:] if name != "nfc" else unicodedata.normalize("NFC", text[offset:]),
            )
            added = offset == 0 or text[offset - 1] == ">"  # a space that is before no text that was sent
            assert there.startswith(own) or (added and there.startswith(own.lstrip())), (own, there)
        assert offsets == sorted(offsets)


async def test_an_echo_of_ids_says_what_the_tokens_say(serve: Any, codec: TextCodec) -> None:
    ids = [
        *codec.encode("a\u20ac", special=False),
        3 + 200,
        *codec.encode("the", special=False),
        EOS,
        *codec.encode("on", special=False),
    ]
    client, _ = await serve(lambda g: with_prompt_logprobs(g, codec.encode("\u20acx", special=False)[:2]))
    for shown in (True, False):
        text, tokens, offsets = await echoed(client, ids, skip_special_tokens=not shown)
        check(text, tokens, offsets, hidden=0 if shown else 1)
        cut, tokens, offsets = await echoed(client, ids, skip_special_tokens=not shown, truncate_prompt_tokens=4)
        check(cut, tokens, offsets, hidden=0 if shown else 1)

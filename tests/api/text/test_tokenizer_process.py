"""A tokenizer in a process of its own: the same results as in this one, another process after its death, none after use."""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from blockwright.api.errors import ApiError
from blockwright.api.text import tokenizer as codecs
from blockwright.api.text import tokenizer_process
from blockwright.api.text.encoder import Encoder, GivesUp
from blockwright.api.text.tokenizer import TextCodec
from blockwright.api.text.tokenizer_build import TokenizerParts, WrongSettings
from blockwright.api.text.tokenizer_process import TokenizerProcess
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.api.fake_port import make_folder

TEXTS = ["", "a b  c", " two  words", "é€ 東京", "<s>named</s>", "\n\t x", "bee " * 50]


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {char: i for i, char in enumerate(alphabet)} | {"be": 256, "bee": 257}
    tokenizer = Tokenizer(models.BPE(words, [("b", "e"), ("be", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def spaced() -> Tokenizer:
    words = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "e", "▁b"]
    tokenizer = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [("▁", "b")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def without_decoder() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 7, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def parts_of(tokenizer: Tokenizer) -> TokenizerParts:
    return TokenizerParts(tokenizer.to_str(), {}, {}, {}, "", "TokenizersBackend")


def both(make: Any) -> tuple[Encoder, TokenizerProcess]:
    return Encoder(make()), TokenizerProcess(parts_of(make()))


@pytest.mark.parametrize("make", [byte_level, spaced, without_decoder])
def test_results_are_the_same_as_in_this_process(make: Any) -> None:
    here, there = both(make)
    assert (there.size, there.added, there.decoder) == (here.size, here.added, here.decoder)
    assert [there.token(id) for id in range(300)] == [here.token(id) for id in range(300)]
    assert [there.id_of(word) for word in ("a", "<s>", "none")] == [here.id_of(word) for word in ("a", "<s>", "none")]
    for text in TEXTS:
        for special in (False, True):
            ids = here.ids(text, special=special)
            assert there.ids(text, special=special) == ids
            assert there.places(text, special=special) == here.places(text, special=special)
            assert there.decode([*ids, 9999], special=special) == here.decode([*ids, 9999], special=special)


def test_a_codec_over_it_writes_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "m")
    small = TextCodec.load(CheckpointFiles(folder))
    monkeypatch.setattr(codecs, "LARGE", 0)
    large = TextCodec.load(CheckpointFiles(folder))
    assert (small.quick, large.quick) == (True, False)
    assert (large.special, large.named, large.notes, large.size) == (small.special, small.named, small.notes, small.size)
    for text in TEXTS:
        ids = small.encode(text, special=True)
        assert large.encode(text, special=True) == ids
        assert large.offsets(text, special=True) == small.offsets(text, special=True)
        assert large.decode(ids) == small.decode(ids)
        assert [large.token_bytes(id) for id in ids] == [small.token_bytes(id) for id in ids]


def test_a_process_that_is_killed_is_replaced() -> None:
    there = TokenizerProcess(parts_of(byte_level()))
    before = there.ids("a bee", special=False)
    os.kill(there.pid, signal.SIGKILL)
    assert there.ids("a bee", special=False) == before


def test_a_process_that_ends_again_is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "LARGE", 0)
    codec = TextCodec.load(CheckpointFiles(make_folder(tmp_path / "m")))

    def ended(child: object, question: list[Any]) -> None:
        raise EOFError

    monkeypatch.setattr(tokenizer_process._TokenizerChild, "ask", ended)
    with pytest.raises(ApiError, match="ended twice on this text") as caught:
        codec.encode("a", special=False)
    assert caught.value.status == 503


def test_no_process_is_left_after_use() -> None:
    there = TokenizerProcess(parts_of(byte_level()))
    pid = there.pid
    del there
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_an_expression_that_takes_too_long_is_given_up() -> None:
    document = json.loads(byte_level().to_str())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    there = TokenizerProcess(
        TokenizerParts(json.dumps({**document, "pre_tokenizer": split}), {}, {}, {}, "", "TokenizersBackend")
    )
    with pytest.raises(GivesUp):
        there.ids("a" * 30 + "x", special=False)
    assert there.ids("b", special=False)


def test_wrong_files_are_refused_with_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, words = make_folder(tmp_path / "m"), []
    for wrong in ('{"version": "1.0"}', "[]", (folder / "tokenizer.json").read_text()):
        (folder / "tokenizer.json").write_text(wrong)
        if "model" in wrong:
            (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": 1}}')
        for large in (1 << 20, 0):
            monkeypatch.setattr(codecs, "LARGE", large)
            with pytest.raises(CheckpointError) as caught:
                TextCodec.load(CheckpointFiles(folder))
            words.append(str(caught.value))
    assert words[::2] == words[1::2]
    with pytest.raises(WrongSettings):
        TokenizerProcess(TokenizerParts(byte_level().to_str(), {"added_tokens_decoder": {"x": 1}}, {}, {}, "", ""))

"""Tokenizers are built as transformers 5 builds them from the same folder: classes, added tokens, flags, special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing

from blockwright.api.text.tokenizer import TextCodec
from blockwright.api.text.tokenizer_classes import _MISNAMED, _OF_MODELS, CLASSES, UNKNOWN_HERE
from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.checkpoints import write_tokenizer
from blockwright.tests.claims import claim

TEXTS = (
    "hello the end",
    " leading",
    "  two spaces ",
    "<s>odd</s> the",
    "a <tool>x</tool>b <|im_start|>user\nhi<|im_end|>",
    "e\u0301t\u00e9 \ud55c 🙂\u200b",
    "don't 12345 stop\n\n  x\t",
    "",
)
PIECES = ["▁", "l", "e", "a", "d", "i", "n", "g", "h", "o", "t", "s", "▁l", "▁t", "he", "▁the", "ad", "ing", "▁le", "in"]
MERGES = [("▁", "l"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "d"), ("i", "n"), ("in", "g"), ("▁l", "e")]


def write_sentencepiece(folder: Path, **config: Any) -> Path:
    """A tokenizer of Llama's older form: a normalizer that puts "▁" before a text and for spaces, and byte fallback."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    tokenizer = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in words[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_byte_level(folder: Path, **config: Any) -> Path:
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(
        [AddedToken("<|im_start|>", special=False, normalized=False), "<tool>", AddedToken("</tool>", rstrip=True)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    return folder


def check(folder: Path, model_type: str = "llama") -> TextCodec:
    """Encode and decode all texts as transformers does; return the codec."""
    from transformers import AutoTokenizer

    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    reference = AutoTokenizer.from_pretrained(folder)
    codec = TextCodec.load(CheckpointFiles(folder))
    known = range(max(len(reference), 1))
    for text in TEXTS:
        for special in (True, False):
            ids = reference.encode(text, add_special_tokens=special)
            assert codec.encode(text, special=special) == ids, (text, special)
            for shown in (True, False):
                assert codec.decode(ids, special=shown) == reference.decode(ids, skip_special_tokens=not shown), (
                    text,
                    shown,
                )
    hidden = {i for i in known if reference.decode([i]) and not reference.decode([i], skip_special_tokens=True)}
    empty = {i for i in codec.special if not reference.decode([i])}
    assert codec.special - empty == hidden
    listed = {i for i in reference.all_special_ids if i is not None}
    assert {i for i in listed if not reference.decode([i], skip_special_tokens=True)} <= codec.special
    assert {
        name: str(token) for name, token in reference.special_tokens_map.items() if isinstance(token, str)
    } == codec.named
    for ids in ([5, 6, 7], [*range(40)], sorted(hidden)):
        for shown in (True, False):
            detokenizer = codec.detokenizer(special=shown)
            joined = detokenizer.push(ids) + detokenizer.flush()
            assert joined == codec.decode(ids, special=shown) or "\ufffd" in joined
    return codec


SPECIAL: dict[str, Any] = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
FLAGS: dict[str, dict[str, Any]] = {
    "flag only in the configuration": {"added_tokens_decoder": {"269": {"content": "<|im_start|>", **SPECIAL}}},
    "token only in the configuration": {"added_tokens_decoder": {"272": {"content": "<|im_end|>", **SPECIAL}}},
    "flag taken away": {"added_tokens_decoder": {"1": {"content": "<s>", **SPECIAL, "special": False}}},
    "strips": {"added_tokens_decoder": {"269": {"content": "<|im_start|>", **SPECIAL, "rstrip": True, "lstrip": True}}},
    "named in the vocabulary": {"eos_token": "<|im_start|>"},
    "named and flagged": {
        "eos_token": "<|im_start|>",
        "added_tokens_decoder": {"269": {"content": "<|im_start|>", **SPECIAL}},
    },
    "named, not flagged": {
        "eos_token": "<|im_start|>",
        "added_tokens_decoder": {"269": {"content": "<|im_start|>", **SPECIAL, "special": False, "rstrip": True}},
    },
    "named and new": {"pad_token": "<|im_end|>"},
    "named with flags": {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", **SPECIAL, "lstrip": True}},
    "a list": {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    "a newer list": {"extra_special_tokens": ["<|im_end|>", "<tool>"]},
    "an object": {"extra_special_tokens": {"call_token": "<tool>", "image_token": "<|im_end|>"}},
    "both lists": {"extra_special_tokens": ["<|im_end|>"], "additional_special_tokens": ["<tool>"]},
    "of the model": {"image_token": "<|im_end|>", "unk_token": None},
    "special tokens are split": {"split_special_tokens": True, "bos_token": "<s>"},
    "all by name": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_prefix_space": True},
}


@claim("Tokenizers are built as transformers builds them", of="checkpoints")
@pytest.mark.parametrize("config", FLAGS.values(), ids=FLAGS)
def test_what_the_configuration_says_of_tokens_counts(tmp_path: Path, config: dict[str, Any]) -> None:
    check(write_byte_level(tmp_path, **config))


def test_a_flag_of_the_configuration_alone_hides_a_token(tmp_path: Path) -> None:
    codec = check(write_byte_level(tmp_path, **FLAGS["flag only in the configuration"]))
    assert codec.decode([codec.encode("the", special=False)[0], 269]) == "t"
    assert 269 in codec.special


@pytest.mark.parametrize("listed", [False, True])
def test_the_older_files_count_where_the_configuration_lists_no_tokens(tmp_path: Path, listed: bool) -> None:
    folder = write_byte_level(tmp_path, **({"added_tokens_decoder": {}} if listed else {}))
    named = {"eos_token": {"content": "<|im_start|>", **SPECIAL}, "additional_special_tokens": ["<tool>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    (folder / "added_tokens.json").write_text('{"<|im_end|>": 272, "<|im_start|>": 269}')
    check(folder)


LLAMA: dict[str, dict[str, Any]] = {
    "as ever": {},
    "legacy": {"legacy": True},
    "not said": {"legacy": None},
    "no prefix": {"add_prefix_space": False},
    "fast": {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False},
    "code": {"tokenizer_class": "CodeLlamaTokenizer"},
    "gemma": {"tokenizer_class": "GemmaTokenizerFast", "pad_token": "<unk>", "mask_token": None, "bos_token": None},
    "plain": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "unknown": {"tokenizer_class": "MyTokenizer"},
    "none": {"tokenizer_class": None},
    "listed": {"added_tokens_decoder": {str(i): {"content": w, **SPECIAL} for i, w in enumerate(("<unk>", "<s>", "</s>"))}},
    "other end": {"eos_token": "<|im_end|>", "added_tokens_decoder": {"279": {"content": "<|im_end|>", **SPECIAL}}},
}


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "phi3", "gemma"])
@pytest.mark.parametrize("config", LLAMA.values(), ids=LLAMA)
def test_classes_that_build_a_tokenizer_anew_are_followed(tmp_path: Path, config: dict[str, Any], model_type: str) -> None:
    check(write_sentencepiece(tmp_path, **config), model_type)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gpt_neox", "mistral", "glm4"])
@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("LlamaTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3_5Tokenizer", "GPT2TokenizerFast"),
        *("GPTNeoXTokenizer", "CodeGenTokenizer", "PreTrainedTokenizerFast"),
    ],
)
def test_byte_level_classes_are_followed(tmp_path: Path, name: str, spaced: bool, model_type: str) -> None:
    check(write_byte_level(tmp_path, tokenizer_class=name, add_prefix_space=spaced, eos_token="</s>"), model_type)


def test_a_leading_space_is_as_the_class_has_it_and_an_operator_is_notified(tmp_path: Path) -> None:
    codec = check(write_sentencepiece(tmp_path))
    assert [codec.token_text(i) for i in codec.encode(" leading", special=False)] == ["▁le", "ad", "ing"]
    assert "built as LlamaTokenizer of transformers 5" in codec.notes[0]
    assert "normalizer" in codec.notes[0]
    write_sentencepiece(tmp_path, tokenizer_class="TokenizersBackend")
    codec = check(tmp_path)
    assert [codec.token_text(i) for i in codec.encode(" leading", special=False)] == ["▁", "▁le", "ad", "ing"]
    assert codec.notes == ()
    write_sentencepiece(tmp_path, tokenizer_class="T5Tokenizer")
    (note,) = TextCodec.load(CheckpointFiles(tmp_path)).notes
    assert "transformers 5 builds a T5Tokenizer anew" in note


@claim("Tokenizers are built as transformers builds them", of="checkpoints")
def test_the_tables_of_classes_are_those_of_transformers() -> None:
    from transformers import TokenizersBackend
    from transformers.models.auto.tokenization_auto import (
        MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
        TOKENIZER_MAPPING_NAMES,
        tokenizer_class_from_name,
    )

    assert {name for name in _OF_MODELS if name in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS} == _MISNAMED
    for model_type, name in _OF_MODELS.items():
        theirs = TOKENIZER_MAPPING_NAMES[model_type]
        assert (name or "TokenizersBackend") == theirs or (not name and theirs == "MistralCommonBackend")
    assert "llama" not in TOKENIZER_MAPPING_NAMES
    for name in (*CLASSES, *UNKNOWN_HERE):
        found = tokenizer_class_from_name(name)
        assert found is not None, name
        assert not issubclass(found, TokenizersBackend) or "__init__" in vars(found), name


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "y"}}},
        {"added_tokens_decoder": {"3": "y"}},
        {"eos_token": 5},
        {"extra_special_tokens": [3]},
        {"additional_special_tokens": "<s>"},
    ],
)
def test_values_that_are_no_tokens_are_refused_in_a_sentence(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"the tokenizer's configuration in .* has for .*; correct it"):
        TextCodec.load(CheckpointFiles(write_byte_level(tmp_path, **config)))

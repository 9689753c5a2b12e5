"""The tokenizer classes of transformers 5 that rebuild a tokenizer from vocabulary and merges of tokenizer.json alone.

``choose`` returns the class that transformers uses for a checkpoint; ``rebuilt`` returns that class's tokenizer. Classes
that keep tokenizer.json as it is have no entry here. docs/decisions/texts.md has the reasons. No file is read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

Settings = Mapping[str, Any]  # contents of tokenizer_config.json
_PLAIN = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizer", "PreTrainedTokenizerFast"}
_OF_MODELS = {  # model_type -> its class in transformers; "": tokenizer.json as it is
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    **dict.fromkeys(("glm", "glm4", "granite", "mistral", "olmo2", "phi3"), ""),
}
_MISNAMED = {"qwen2", "phi3"}  # model types with checkpoints that often name the wrong class
_ALIASES = {"Phi3Tokenizer": "LlamaTokenizer"}
UNKNOWN_HERE = {  # classes that also rebuild the tokenizer, but have no entry here
    *("AlbertTokenizer", "BartTokenizer", "BarthezTokenizer", "BertTokenizer", "BigBirdTokenizer", "BlenderbotTokenizer"),
    *("CLIPTokenizer", "CamembertTokenizer", "CohereTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "FunnelTokenizer"),
    *("HerbertTokenizer", "LEDTokenizer", "LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer", "LayoutXLMTokenizer"),
    *("LukeTokenizer", "LxmertTokenizer", "MBart50Tokenizer", "MBartTokenizer", "MPNetTokenizer", "MarkupLMTokenizer"),
    *("MobileBertTokenizer", "MvpTokenizer", "NllbTokenizer", "NougatTokenizer", "OpenAIGPTTokenizer", "PegasusTokenizer"),
    *("ReformerTokenizer", "RemBertTokenizer", "RoFormerTokenizer", "RobertaTokenizer", "SeamlessM4TTokenizer"),
    *("Siglip2Tokenizer", "SplinterTokenizer", "T5Tokenizer", "UdopTokenizer", "WhisperTokenizer", "XGLMTokenizer"),
    *("XLMRobertaTokenizer", "XLNetTokenizer"),
}
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_BARE = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """The way in which a class makes a tokenizer.

    named: special tokens of a checkpoint that names none. empty: makes the tokenizer for a checkpoint's settings, without a
    vocabulary. bos: True if the first token is put before every text; None: as tokenizer.json says. all_special: every named
    token is special, whatever tokenizer.json says of it.
    """

    named: Mapping[str, str | None]
    empty: Callable[[Settings], Tokenizer]
    bos: bool | None = None
    all_special: bool = False


def _spaced(settings: Settings, default: bool) -> bool:
    found = settings.get("add_prefix_space")
    return default if found is None else bool(found)


def _byte_fallback(unknown: str | None) -> Tokenizer:
    """Return a BPE tokenizer with byte fallback. ``unknown``: its unknown token, if any."""
    words = {} if unknown is None else {unknown: 0}
    return Tokenizer(BPE(words, [], fuse_unk=True, byte_fallback=True, unk_token=unknown))


def _unknown(settings: Settings) -> str:
    """Return the text of the unknown token, which is a text or an object in the settings."""
    token = settings.get("unk_token")
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else "<unk>"


def _llama(settings: Settings, *, code: bool = False) -> Tokenizer:
    """Return the tokenizer of Llama or Code Llama.

    Code Llama has an unknown token, no legacy mode, and always strips its first space.
    """
    spaced = _spaced(settings, True)
    scheme = "always" if settings.get("legacy", False) and not code else "first"
    made = _byte_fallback(_unknown(settings) if code else None)
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme if spaced else "never", split=False)
    made.decoder = _pieces(strip=spaced or code)
    return made


def _gemma(settings: Settings) -> Tokenizer:
    made = _byte_fallback(_unknown(settings))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous", invert=False)
    made.decoder = _pieces(strip=False)
    made.normalizer = normalizers.Replace(" ", "▁")
    return made


def _pieces(*, strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if strip else steps)


def _qwen(pattern: str, settings: Settings) -> Tokenizer:
    made = Tokenizer(BPE({}, [], byte_fallback=False, **_BARE))
    made.decoder = decoders.ByteLevel()
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=_spaced(settings, False), use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    return made


def _gpt2(settings: Settings) -> Tokenizer:
    made = Tokenizer(BPE({}, [], **_BARE))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=_spaced(settings, False))
    made.decoder = decoders.ByteLevel()
    return made


def _gpt_neox(settings: Settings) -> Tokenizer:
    made = _gpt2(settings)
    made.normalizer = normalizers.NFC()
    return made


def _codegen(settings: Settings) -> Tokenizer:
    made = _gpt2(settings)
    made.post_processor = processors.ByteLevel(add_prefix_space=True, use_regex=True, trim_offsets=False)
    return made


_END = "<|endoftext|>"
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_FILL = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>", "<FILL_ME>")
_FILLING = dict(zip(("prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"), _FILL, strict=True))
_GEMMA = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}
_QWEN = {"unk_token": _END, "bos_token": None, "eos_token": _END, "pad_token": _END}
_GPT = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
CLASSES: dict[str, TokenizerClass] = {
    "CodeGenTokenizer": TokenizerClass(_GPT, _codegen),
    "CodeLlamaTokenizer": TokenizerClass(_LLAMA | _FILLING, lambda settings: _llama(settings, code=True), bos=True),
    "GPT2Tokenizer": TokenizerClass(_GPT, _gpt2),
    "GPTNeoXTokenizer": TokenizerClass({**_GPT, "pad_token": "<|padding|>"}, _gpt_neox, bos=False),
    "GemmaTokenizer": TokenizerClass(_GEMMA, _gemma),
    "LlamaTokenizer": TokenizerClass(_LLAMA, _llama),
    "Qwen2Tokenizer": TokenizerClass(_QWEN, lambda settings: _qwen(_QWEN2, settings), all_special=True),
    "Qwen3_5Tokenizer": TokenizerClass(_QWEN, lambda settings: _qwen(_QWEN3_5, settings)),
}


def choose(declared: str, model_type: str, *, byte_level: bool) -> str:
    """Return the class that transformers uses; "" if it keeps tokenizer.json as it is.

    declared: ``tokenizer_class`` of tokenizer_config.json, else of config.json; "": none. byte_level: tokenizer.json
    contains that type.
    """
    plain = declared.removesuffix("Fast")
    own = _OF_MODELS.get(model_type)
    if plain == "LlamaTokenizer" and byte_level and model_type not in _MISNAMED:
        return ""
    if not declared:
        chosen = own or ""
    elif own is None or own == plain:
        chosen = plain
    elif own:
        chosen = own if model_type in _MISNAMED else plain
    else:
        chosen = ""
    return "" if chosen in _PLAIN or f"{chosen}Fast" in _PLAIN else _ALIASES.get(chosen, chosen)


def rebuilt(document: dict[str, Any], name: str, settings: Settings) -> tuple[Tokenizer, list[str]] | None:
    """Return the tokenizer that a class makes of tokenizer.json, without added tokens, and the parts that differ.

    Return None if the file has no vocabulary with merges. Raise the package's exceptions.
    """
    model = document.get("model") or {}
    if not isinstance(model.get("vocab"), dict) or not isinstance(model.get("merges"), list):
        return None
    made = json.loads(CLASSES[name].empty(settings).to_str())
    saved = json.loads(Tokenizer.from_str(json.dumps(_without_words(document))).to_str())
    different = [part for part in ("normalizer", "pre_tokenizer", "decoder") if _kind(made[part]) != _kind(saved[part])]
    for flag in ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges"):
        if (made["model"].get(flag) or None) != (saved["model"].get(flag) or None):
            different.append(flag)
    made["model"] |= {"vocab": model["vocab"], "merges": model["merges"]}
    made["post_processor"] = document.get("post_processor") or made["post_processor"]
    return Tokenizer.from_str(json.dumps(made)), different


def _without_words(document: dict[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json almost without a vocabulary, to be read and written in today's form."""
    model = document["model"]
    kept = {unknown: 0} if isinstance(unknown := model.get("unk_token"), str) else {}
    return {**document, "added_tokens": [], "post_processor": None, "model": {**model, "vocab": kept, "merges": []}}


def _kind(part: Any) -> Any:
    """Return a part without the trimming of offsets, which changes no token."""
    if isinstance(part, list):
        return [_kind(one) for one in part]
    if not isinstance(part, dict):
        return part
    ignored = {"trim_offsets"}
    return {key: _kind(value) for key, value in part.items() if key not in ignored}

"""The tokenizer of a checkpoint as transformers 5 builds it: its class, added tokens with flags, named special tokens.

The contents of the files are passed in; no file is read here. docs/decisions/texts.md has the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from .tokenizer_classes import CLASSES, UNKNOWN_HERE, TokenizerClass, choose, rebuilt

_FIRST = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OF_SETTINGS = ("add_prefix_space", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "legacy",
               "split_special_tokens", "tokenizer_class")  # fmt: skip
Token = str | AddedToken
Named = dict[str, Token | None]


class WrongSettings(Exception):
    """An invalid value in a file; the text is the rest of a sentence that begins with the file's name."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """The contents of a tokenizer's files, and from config.json the model type and the tokenizer's class."""

    text: str  # tokenizer.json
    settings: Mapping[str, Any]  # tokenizer_config.json
    special_map: Mapping[str, Any]  # special_tokens_map.json
    added: Mapping[str, Any]  # added_tokens.json
    model_type: str = ""
    declared: str = ""


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """A tokenizer, the ids of its special tokens, and the named ones. ``notes``: warnings for the operator."""

    tokenizer: Tokenizer
    special: frozenset[int]
    named: dict[str, str]
    notes: tuple[str, ...]


def build_tokenizer(parts: TokenizerParts) -> BuiltTokenizer:
    """Build the tokenizer; raise WrongSettings, and the package's exceptions for a tokenizer.json that it cannot read."""
    settings = parts.settings
    declared = settings.get("tokenizer_class") or parts.declared
    name = choose(declared if isinstance(declared, str) else "", parts.model_type, byte_level='"ByteLevel"' in parts.text)
    made = _rebuilt(parts, name) if name in CLASSES else None
    notes = []
    if made is not None:
        tokenizer, different = made
        if different:
            notes.append(
                f"the tokenizer is built as {name} of transformers 5 builds it, not as tokenizer.json has it "
                f"({', '.join(different)}); to keep the file's, set tokenizer_class to TokenizersBackend in "
                "tokenizer_config.json"
            )
    else:
        tokenizer = Tokenizer.from_str(parts.text)
        if name in CLASSES or name in UNKNOWN_HERE:
            notes.append(
                f"the tokenizer is as tokenizer.json has it, though transformers 5 builds a {name} anew; "
                "set tokenizer_class to TokenizersBackend in tokenizer_config.json if that is what was trained with"
            )
    kind = CLASSES[name] if made is not None else None
    before = _flagged(tokenizer)
    named = _add_tokens(tokenizer, parts, kind)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    _process(tokenizer, kind, named)
    hidden = (tokenizer.token_to_id(token) for token in (*before, *_flagged(tokenizer)))
    texts = {key: str(token) for key, token in named.items() if token is not None}
    return BuiltTokenizer(tokenizer, frozenset(id for id in hidden if id is not None), texts, tuple(notes))


def _rebuilt(parts: TokenizerParts, name: str) -> tuple[Tokenizer, list[str]] | None:
    document = json.loads(parts.text)
    if not isinstance(document, dict):
        raise WrongSettings("holds no JSON object")
    return rebuilt(document, name, parts.settings)


def _flagged(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]


def _token(value: Any, at: str) -> Token | None:
    """Return a token from its JSON form: a text, or an object of its text and flags."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {key: value[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value}
        if all(isinstance(flag, bool) for flag in flags.values()):
            return AddedToken(value["content"], **flags)
    raise WrongSettings(f"has for {at} {value!r:.80}, not a token")


def _tokens(value: Any, at: str) -> list[Token]:
    if not isinstance(value, list):
        raise WrongSettings(f"has for {at} {value!r:.80}, not a list of tokens")
    return [token for token in (_token(one, at) for one in value) if token is not None]


def _add_tokens(tokenizer: Tokenizer, parts: TokenizerParts, kind: TokenizerClass | None) -> Named:
    """Add the tokens that the files list beside the vocabulary; return the named special tokens."""
    settings = dict(parts.settings)
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings["additional_special_tokens"]
    flagged: dict[int, AddedToken]
    if "added_tokens_decoder" in settings:
        flagged = _decoder(settings["added_tokens_decoder"])
    else:
        settings |= _of_map(parts.special_map, settings)
        flagged = _of_added(parts.added, settings)
        flagged |= _saved(parts.text, tokenizer)
    by_text = {token.content: token for token in flagged.values()}
    extra = settings.get("extra_special_tokens") or []
    own = extra if isinstance(extra, dict) else {}
    further = [] if isinstance(extra, dict) else _tokens(extra, "extra_special_tokens")
    named: Named = dict.fromkeys(_FIRST)
    named |= kind.named if kind is not None else {}
    for key, value in {**settings, **own}.items():
        texts = isinstance(value, str) or (isinstance(value, dict) and "content" in value)
        if key in _FIRST or key in own or (key.endswith("_token") and texts):
            named[key] = _token(value, key)
    for key in _FIRST:
        if (token := named[key]) is not None and key in settings:
            named[key] = by_text.get(str(token), token)
    _add(tokenizer, flagged, [token for token in named.values() if token is not None], further)
    if kind is not None and kind.all_special:
        every = dict.fromkeys(str(token) for token in (*named.values(), *further) if token is not None)
        tokenizer.add_tokens([AddedToken(text, special=True) for text in every])
    return named


def _decoder(value: Any) -> dict[int, AddedToken]:
    """Return ``added_tokens_decoder``: ids in decimal digits, and tokens with flags."""
    found = {}
    for id, token in value.items() if isinstance(value, dict) else ():
        made = _token(token, "added_tokens_decoder")
        if not (id.isascii() and id.isdigit() and len(id) < 12) or not isinstance(made, AddedToken):
            raise WrongSettings(f"has for added_tokens_decoder {id[:40]!r}: {token!r:.80}, not an id and a token")
        found[int(id)] = made
    return found


def _of_map(special_map: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that special_tokens_map.json replaces; its tokens are special, whatever their own flag says."""
    found: dict[str, Any] = {}
    for key, value in special_map.items():
        if key == "extra_special_tokens" and isinstance(value, list):
            there = list(settings.get(key) or [])
            value = [*there, *(one for one in value if one not in there)]
        found[key] = {**value, "special": True} if isinstance(value, dict) and "content" in value else value
    return found


def _of_added(added: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json, where only names make a token special."""
    tokens = [_token(settings.get(key), key) for key in _FIRST]
    extra = settings.get("extra_special_tokens") or []
    others = _tokens(extra, "extra_special_tokens") if isinstance(extra, list) else []
    special = {str(token) for token in (*tokens, *others) if token is not None}
    found = {}
    for text, id in added.items():
        if not isinstance(id, int):
            raise WrongSettings(f"has for {text[:80]!r} {id!r:.80}, not an id")
        found[id] = AddedToken(text, normalized=text not in special, special=text in special)
    return found


def _saved(text: str, tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the added tokens of tokenizer.json, which a rebuilt tokenizer does not have."""
    there = tokenizer.get_added_tokens_decoder()
    if there:
        return there
    found = json.loads(text).get("added_tokens") or []
    return {one["id"]: token for one in found if isinstance(token := _token(one, "added_tokens"), AddedToken)}


def _add(tokenizer: Tokenizer, flagged: Mapping[int, AddedToken], named: Iterable[Token], further: Iterable[Token]) -> None:
    """Add tokens in transformers' order: tokens with flags by id, then tokens known only by a name or a list.

    All of them are added, including existing ones; a name makes a token special.
    """
    wanted: list[Token] = [token for _, token in sorted(flagged.items())]
    there = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | {str(token) for token in wanted}
    names = {str(token) for token in named}
    for token in (*named, *further):
        if str(token) not in there and token not in wanted:
            wanted.append(token)
    made = []
    for token in wanted:
        if isinstance(token, str):
            token = AddedToken(token, special=True)
        elif not token.special and str(token) in names:
            token.special = True
        made.append(token)
    if made:
        tokenizer.add_tokens(made)


def _process(tokenizer: Tokenizer, kind: TokenizerClass | None, named: Mapping[str, Token | None]) -> None:
    """Set the post-processor, which adds tokens around a text, if the class defines its own."""
    if kind is None or kind.bos is None:
        return
    first = str(named["bos_token"]) if kind.bos and named["bos_token"] is not None else ""
    ids = [(first, tokenizer.token_to_id(first))] if first else []
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A".strip(), pair=None, special_tokens=ids)

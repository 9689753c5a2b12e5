"""A checkpoint's tokenizer: text to ids and back, as transformers would do it with the same folder.

Reads ``tokenizer.json`` and ``tokenizer_config.json`` (and the older ``special_tokens_map.json``) through the ``tokenizers``
package. Owns no state of a request. Slow parts (loading, long texts) are the caller's to put on a thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from blockwright.api.text.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from blockwright.gpu.errors import CheckpointError


def read_text(path: Path) -> str | None:
    """None where there is no such file. Raises CheckpointError for one that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); download the checkpoint again") from None


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the checkpoint, empty where there is no such file. Raises CheckpointError if it is no object."""
    path = folder / name
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); download the checkpoint again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; download the checkpoint again")
    return value


def special_tokens(folder: Path) -> dict[str, str]:
    """``bos_token``, ``eos_token``, ... of the checkpoint, those that it names."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(folder, file).items():
            if isinstance(value, dict):
                value = value.get("content")
            if key.endswith("_token") and isinstance(value, str):
                named[key] = value
    return named


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes as (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


class _Pieces(dict[int, bytes]):
    """Token id -> the bytes it shows, filled as ids turn up; ``hidden`` tokens show nothing."""

    def __init__(self, codec: TextCodec, hidden: frozenset[int]) -> None:
        super().__init__()
        self._codec, self._hidden = codec, hidden

    def __missing__(self, token: int) -> bytes:
        piece = b"" if token in self._hidden else self._codec.token_bytes(token)
        self[token] = piece
        return piece


class TextCodec:
    """See the module. ``special`` holds the ids that are shown only when asked for."""

    def __init__(self, tokenizer: Tokenizer, named: dict[str, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self.named = named or {}
        self.missing = ""  # a sentence when there is no tokenizer: texts cannot be encoded
        self.special = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else {}
        self._byte_level = decoder.get("type") == "ByteLevel"
        self._metaspace = "\u2581" in json.dumps(decoder, ensure_ascii=False)
        self._byte_fallback = "ByteFallback" in json.dumps(decoder)
        self._pieces = _Pieces(self, self.special)
        self._all_pieces = _Pieces(self, frozenset())

    @classmethod
    def load(cls, folder: Path) -> TextCodec:
        """Raises CheckpointError where tokenizer.json is not usable. Without one only token ids can be served."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            codec = cls(Tokenizer(WordLevel({}, unk_token="")))
            codec.missing = (
                f"{folder} has no tokenizer.json, so prompts are token ids and answers have no text; save one with "
                "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) beside the weights"
            )
            return codec
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise CheckpointError(f"{path} cannot be loaded ({error}); download it again") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        named = special_tokens(folder)
        known = [t for t in named.values() if tokenizer.token_to_id(t) is not None]
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in known])
        return cls(tokenizer, named)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """``special``: add what tokenizer.json puts around a text (BOS); off for a rendered chat, which has it."""
        # Not ``encode``: it keeps the interpreter's lock, so that a long text on a thread would stop the event loop too.
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """``special``: show special tokens too."""
        return self._tokenizer.decode(tokens, skip_special_tokens=not special)

    def detokenizer(self, context: Sequence[int] = (), *, special: bool = False) -> Detokenizer:
        """``context``: the ids that the text continues; without them it starts afresh. ``special``: show special tokens."""
        if self._byte_level:
            return ByteDetokenizer(self._all_pieces if special else self._pieces)
        hidden = frozenset[int]() if special else self.special
        return WindowDetokenizer(partial(self.decode, special=special), self._fallback_byte, hidden, context)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it; empty for an id that is in none."""
        return self._tokenizer.id_to_token(token) or ""

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for, special tokens by their name; empty for an id that is in no vocabulary."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if token in self.special:
            return text.encode()
        if self._byte_level:
            codes = [_ALPHABET.get(char, -1) for char in text]
            return text.encode() if -1 in codes else bytes(codes)
        byte = self._fallback_byte(token)
        if byte is not None:
            return bytes([byte])
        return (text.replace("\u2581", " ") if self._metaspace else text).encode()

    def _fallback_byte(self, token: int) -> int | None:
        text = self._tokenizer.id_to_token(token)
        if not self._byte_fallback or text is None or len(text) != 6 or not (text.startswith("<0x") and text[5] == ">"):
            return None
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None

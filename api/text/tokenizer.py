"""A checkpoint's tokenizer: text to ids and back, with the same results as transformers for the same folder.

The files are read here; ``tokenizer_build.py`` builds a tokenizer from their contents. No state of a request is kept. The
caller runs the slow parts (loading, long texts) on a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ...gpu.errors import CheckpointError
from ...gpu.weights.checkpoint_files import (
    ADDED_TOKENS,
    SPECIAL_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CheckpointFiles,
    read_text,
)
from ...gpu.weights.token_bytes import byte_alphabet
from ..errors import ApiError, bad_request
from .detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from .encoder import Encoder, GivesUp
from .tokenizer_build import TokenizerParts, WrongSettings, build_tokenizer
from .tokenizer_cost import is_quick
from .tokenizer_process import LARGE, TokenizerEnded, TokenizerProcess

_ALPHABET = byte_alphabet()
_LONGEST_WHY = 500  # characters of an error of the package


@contextmanager
def _giving_up(on: str) -> Iterator[None]:
    """Raise a 400 where the package gives up, and a 503 where the tokenizer's process ended."""
    try:
        yield
    except GivesUp as error:
        raise bad_request(f"the tokenizer gives up on {on} ({str(error)[:_LONGEST_WHY]}); send others", "prompt") from None
    except TokenizerEnded:
        why = f"the tokenizer's process ended twice on {on}; send others, or give the server more memory"
        raise ApiError(503, why, retry_after=1.0) from None


def _begin(text: str, own: str, start: int, end: int, place: int) -> int:
    """Return the start of a token's text that an encoding places at ``start`` .. ``end``, perhaps without its first spaces.

    place: end of the tokens before it; a space that only the tokenizer has added is there.
    """
    body = own.lstrip()
    before = start - (len(own) - len(body))
    if before == start or before < 0:
        return start
    if end - start < len(own) and text[before:start] == own[: start - before]:
        return before
    if text.startswith(own, start):
        return start
    if not body:
        return min(start, place)
    return before if text.startswith(body, before) and not text.startswith(body, start) else start


class _Pieces(dict[int, bytes]):
    """A cache, token id -> its bytes, filled on demand; ``hidden`` tokens yield nothing."""

    def __init__(self, codec: TextCodec, hidden: frozenset[int]) -> None:
        super().__init__()
        self._codec, self._hidden = codec, hidden

    def __missing__(self, token: int) -> bytes:
        piece = b"" if token in self._hidden else self._codec.token_bytes(token)
        self[token] = piece
        return piece


class TextCodec:
    """A tokenizer (see the module). ``special``: the ids that are shown only on request."""

    def __init__(
        self,
        encoder: Encoder | TokenizerProcess,
        named: dict[str, str] | None = None,
        special: frozenset[int] | None = None,
    ) -> None:
        self._encoder = encoder
        self.named = named or {}
        self.missing = ""  # a sentence if there is no tokenizer, so that texts cannot be encoded
        self.notes: tuple[str, ...] = ()  # warnings for the operator
        flagged = (id for id, (_, shown_on_request) in encoder.added.items() if shown_on_request)
        self.special = frozenset(flagged) if special is None else special
        decoder = encoder.decoder
        self.quick = encoder.quick  # a short text is short work, and needs no thread
        self.decodes_quickly = is_quick(decoder)
        self._byte_level = decoder.get("type") == "ByteLevel"
        self._metaspace = "\u2581" in json.dumps(decoder, ensure_ascii=False)
        self._byte_fallback = "ByteFallback" in json.dumps(decoder)
        self._pieces = _Pieces(self, self.special)
        self._all_pieces = _Pieces(self, frozenset())

    @classmethod
    def load(cls, source: CheckpointFiles) -> TextCodec:
        """Load the tokenizer of a checkpoint. Without a tokenizer.json only token ids can be served.

        Raise CheckpointError if tokenizer.json is not usable.
        """
        files, model = source.of_tokenizer(), source.merged("config.json")
        path = files.find(TOKENIZER)
        text = read_text(path)
        if text is None:
            codec = cls(Encoder(Tokenizer(WordLevel({}, unk_token=""))))
            codec.missing = (
                f"{path.parent} has no tokenizer.json, so prompts are token ids and answers have no text; save one with "
                "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) beside the weights"
            )
            return codec
        settings, special_map, added = (files.merged(name) for name in (TOKENIZER_CONFIG, SPECIAL_MAP, ADDED_TOKENS))
        names = [value if isinstance(value := model.get(key), str) else "" for key in ("model_type", "tokenizer_class")]
        parts = TokenizerParts(text, settings, special_map, added, *names)
        try:
            codec, notes = cls._large(parts) if len(text) > LARGE else cls._small(parts)
        except WrongSettings as error:
            raise CheckpointError(f"the tokenizer's configuration in {path.parent} {error}; correct it") from None
        except Exception as error:  # the package raises bare Exception
            raise CheckpointError(f"{path} cannot be loaded ({error}); download it again") from None
        if not codec.decodes_quickly:
            raise CheckpointError(
                f"{path} has a decoder that repeats a group of an expression or makes texts much longer, which may take for "
                "ever; give it a simpler one"
            )
        codec.notes = notes
        return codec

    @classmethod
    def _small(cls, parts: TokenizerParts) -> tuple[TextCodec, tuple[str, ...]]:
        """Return a tokenizer in this process, and notes on it."""
        built = build_tokenizer(parts)
        return cls(Encoder(built.tokenizer), built.named, built.special), built.notes

    @classmethod
    def _large(cls, parts: TokenizerParts) -> tuple[TextCodec, tuple[str, ...]]:
        """Return a tokenizer in a process of its own, and notes on it."""
        process = TokenizerProcess(parts)
        return cls(process, process.named, process.special), process.notes

    @property
    def size(self) -> int:
        """Number of tokens, including added ones."""
        return self._encoder.size

    def beyond(self, vocabulary: int) -> list[tuple[int, str]]:
        """Return the added tokens with ids from ``vocabulary`` on, which no model of that vocabulary has."""
        return sorted((id, text) for id, (text, _) in self._encoder.added.items() if id >= vocabulary)

    def id_of(self, token: str) -> int | None:
        return self._encoder.id_of(token)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text. ``special``: add special tokens (BOS), which a rendered chat has already."""
        with _giving_up("this text"):
            return self._encoder.ids(text, special=special)

    def offsets(self, text: str, *, special: bool) -> list[int]:
        """Return the start of each token of ``encode`` in the text; a token that the tokenizer adds has its place there.

        A byte-level tokenizer may leave the spaces before a token out of its range; they belong to the token's text.
        """
        with _giving_up("this text"):
            placed = self._encoder.places(text, special=special)
        found, place = [], 0
        for token, start, end, added in placed:
            if added:
                found.append(place)
                continue
            start = _begin(text, self.said(token), start, end, place)
            found.append(start)
            place = max(place, end)
        return found

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens. ``special``: show special tokens, too."""
        with _giving_up("these tokens"):
            return self._encoder.decode(tokens, special=special)

    def detokenizer(
        self, context: Sequence[int] = (), *, special: bool = False, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """Return a detokenizer for one sequence.

        ``context``: the ids that the text continues; without them it starts afresh. ``special``: show special tokens.
        ``shown``: special tokens that are shown in any case.
        """
        if self._byte_level:
            pieces = _Pieces(self, self.special - shown) if shown else self._pieces
            return ByteDetokenizer(self._all_pieces if special else pieces)
        hidden = frozenset[int]() if special else self.special - shown
        decode = partial(self.decode, special=special or bool(shown))
        return WindowDetokenizer(decode, self._fallback_byte, hidden, context)

    def token_text(self, token: int) -> str:
        """Return the token as the vocabulary spells it; empty for an unknown id."""
        return self._encoder.token(token) or ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, for special tokens their name; empty for an unknown id."""
        text = self._encoder.token(token)
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

    def said(self, token: int) -> str:
        """Return the text of one token, for special tokens their name."""
        return self.token_bytes(token).decode(errors="replace")

    def whole_text(self, token: int) -> str:
        """Return the text of one token; empty for a token that begins or ends within a character."""
        try:
            return self.token_bytes(token).decode()
        except UnicodeDecodeError:
            return ""

    def _fallback_byte(self, token: int) -> int | None:
        text = self._encoder.token(token)
        if not self._byte_fallback or text is None or len(text) != 6 or not (text.startswith("<0x") and text[5] == ">"):
            return None
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None

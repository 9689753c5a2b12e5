"""The encoder of a tokenizer: its work on whole texts, and its vocabulary, in this process.

``tokenizer_process.py`` has the same interface for a large tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenizers import Tokenizer

from .tokenizer_cost import is_quick


class GivesUp(Exception):
    """A panic of the ``tokenizers`` package, at an expression that takes too long, for example; the text is its message."""


@contextmanager
def _panics() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise GivesUp(str(error)) from None


def _state(part: Any) -> Any:
    """Return a part of a tokenizer as tokenizer.json has it; nothing where there is none."""
    return json.loads(part.__getstate__()) if part is not None else {}


class Encoder:
    """A tokenizer of the ``tokenizers`` package.

    ``added``: id -> text and special flag of the added tokens. ``quick``: a short text is short work.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added = {id: (token.content, token.special) for id, token in tokenizer.get_added_tokens_decoder().items()}
        self.decoder = _state(tokenizer.decoder)
        self.quick = is_quick([_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)])

    @property
    def size(self) -> int:
        """Number of tokens, including added ones."""
        return self._tokenizer.get_vocab_size()

    def token(self, id: int) -> str | None:
        return self._tokenizer.id_to_token(id)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def ids(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text. ``special``: with the special tokens that the tokenizer adds."""
        # Not ``encode``, which holds the interpreter lock: a long text on a thread would stop the event loop, too.
        with _panics():
            found: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
            return found

    def places(self, text: str, *, special: bool) -> list[tuple[int, int, int, bool]]:
        """Return for each token of a text: id, start and end in the text, and True if the tokenizer has added it."""
        with _panics():
            made = self._tokenizer.encode_batch([text], add_special_tokens=special)[0]
        parts = zip(made.ids, made.offsets, made.sequence_ids, strict=True)
        return [(id, start, end, part is None) for id, (start, end), part in parts]

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """Return the text of ids. ``special``: with special tokens."""
        with _panics():
            text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
            return text

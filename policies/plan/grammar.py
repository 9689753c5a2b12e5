"""The grammar that constrains an answer, as data; ``gpu/sampling/grammars.py`` has the masks that follow from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

JSON = "json"  # a JSON schema
REGEX = "regex"  # an expression that the whole answer matches
LARK = "lark"  # a context-free grammar that is made here, such as the one of a turn
CLIENTS_LARK = "clients-lark"  # a context-free grammar of a client, which may be ambiguous
CALLS = "calls"  # a turn that is free but for its calls, as ``gpu/sampling/free_turn.py`` describes it
FORMS = (JSON, REGEX, LARK, CLIENTS_LARK, CALLS)
# Blanks between the parts of a JSON text: one, or a new line. Without a bound, a weak model writes them to its limit.
BLANKS = r"(?: |\n[ \t]{0,32})?"
# How JSON is written. All options are set: a schema could set the others, and so loosen itself.
JSON_OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": BLANKS,
    "coerce_one_of": False,
    "lenient": False,
}


BYTES_OF_TOKEN = 510  # of a table, as measured with 131,072 tokens; 30 of them of the index that free turns need
GRAMMAR_BYTES, BYTES_OF_TEXT = 64 << 10, 128  # of a compiled grammar, and of each byte of its text, as measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVocabulary:
    """The tokens that a grammar chooses from.

    ``file`` is the tokenizer.json that has their bytes, and ``digest`` the digest of its content, so that a file that has
    changed since is noticed. ``ends`` are the tokens that end an answer. ``hidden`` are further tokens that stand for no
    text, by other files of the tokenizer.
    """

    file: str
    digest: bytes
    size: int  # token ids of the model, which may be more than its tokenizer has
    ends: list[int]
    hidden: list[int] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The bytes of the table of tokens, about: the library does not report its memory."""
        return BYTES_OF_TOKEN * self.size

    @property
    def key(self) -> bytes:
        """The identity of the table of tokens. Equal tokenizers at two places have one table."""
        parts = [self.digest, self.size, self.ends, self.hidden]
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar of a request: the answer is a text of its language. ``form`` is one of ``FORMS``.

    An end token may come wherever the text so far is in the language. With ``to_the_end`` it may only come where nothing
    else can. Where a turn is free, it may end, or go on behind an end token. With ``forced``, tokens at which the grammar
    leaves no choice are computed together, as drafts that stand.
    """

    form: str
    text: str
    vocabulary: TokenVocabulary
    to_the_end: bool = False
    forced: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of the grammar in its compiled form, about, without its table of tokens."""
        return GRAMMAR_BYTES + BYTES_OF_TEXT * len(self.text)

    @property
    def key(self) -> bytes:
        """The identity of the grammar in its compiled form."""
        parts = [self.form, self.text, self.vocabulary.key]
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

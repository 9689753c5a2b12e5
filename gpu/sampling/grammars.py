"""Masks of allowed tokens, from the grammars of rows.

llguidance computes them (M. Moskal et al.; its limits are counts of work, so that they are the same on every machine). It is
imported when the first grammar comes. A row's state is never stored nor sent: it follows from the grammar and the tokens
behind the prompt, which the token table has. A matcher knows which tokens it has eaten, and eats what is missing, or goes
back where a draft did not stand. Legend: V vocabulary, W words of 32 tokens.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...policies.plan.grammar import JSON, JSON_OPTIONS, REGEX, Grammar, TokenVocabulary
from ..errors import CheckpointError
from ..weights.token_bytes import TokenBytes, token_bytes

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

IDLE = 64  # compiled grammars that are kept although no sequence has them
SPECIAL = b"\xff"  # begins the name of a token without text
MISSING = (
    "llguidance is not installed, so answers cannot be constrained; install it (pip install llguidance), or leave the "
    "constraint out"
)


class GrammarError(Exception):
    """A grammar that cannot be compiled; the text is a sentence, or half of one."""


def require() -> Any:
    """Return the library. Raise GrammarError if it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise GrammarError(MISSING) from None
    return llguidance


def limits() -> LLParserLimits:
    """Return the limits of one grammar's work."""
    found: LLParserLimits = require().LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
    return found


class _Words:
    """The tokens of a vocabulary in the form that the library takes.

    Where a grammar leaves a single text, its tokens are fixed, too: the longest that fit, one after the other.
    """

    bos_token_id = None
    made: LLTokenizer | None = None  # None: the library is still making it

    def __init__(self, tokens: list[bytes], ends: list[int], special: list[int]) -> None:
        self.tokens, self.special_token_ids = tokens, special
        self.eos_token_id = ends[0]

    def __call__(self, text: bytes) -> list[int]:
        return self.made.greedy_tokenize(text.decode(errors="replace")) if self.made is not None else []


def tokenizer_of(vocabulary: TokenVocabulary, table: TokenBytes) -> LLTokenizer:
    """Return the library's form of a vocabulary. Raise GrammarError if it cannot constrain an answer."""
    library = require()
    if table.digest != vocabulary.digest:
        raise GrammarError(f"{vocabulary.file} has changed since the model was added; add the model again")
    if not vocabulary.ends:
        raise GrammarError("the model has no end token, so no constrained answer could end; name its eos_token_id")
    tokens = (table.tokens + [b""] * vocabulary.size)[: vocabulary.size]
    special = sorted({*vocabulary.ends, *vocabulary.hidden} & set(range(vocabulary.size)))
    for id in special:
        tokens[id] = SPECIAL + f"<[{id}]>".encode()
    words = _Words(tokens, vocabulary.ends, special)
    made: LLTokenizer = library.LLTokenizer(library.TokenizerWrapper(words), eos_token=list(vocabulary.ends))
    words.made = made
    return made


def read_tokenizer(vocabulary: TokenVocabulary) -> LLTokenizer:
    """Return the tokenizer of a vocabulary, from its file. Raise GrammarError."""
    try:
        return tokenizer_of(vocabulary, token_bytes(Path(vocabulary.file)))
    except CheckpointError as error:
        raise GrammarError(str(error)) from None


def compiled(form: str, text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher before its first token. Raise GrammarError.

    The first mask is made here, too: it may take a hundred times as long as the others.
    """
    matcher_of = require().LLMatcher
    try:
        if form == JSON:
            grammar = matcher_of.grammar_from_json_schema(_without_options(text), overrides=JSON_OPTIONS)
        else:
            grammar = matcher_of.grammar_from_regex(text) if form == REGEX else matcher_of.grammar_from_lark(text)
        matcher: LLMatcher = matcher_of(tokenizer, grammar, log_level=0, limits=limits())
    except (ValueError, RecursionError) as error:
        raise GrammarError(_on_one_line(str(error))) from None
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(_on_one_line(matcher.get_error()))
    return matcher


def _without_options(text: str) -> str:
    """Return a schema without the library's own keyword, which could loosen it."""
    schema = json.loads(text)
    if isinstance(schema, dict):
        schema.pop("x-guidance", None)
    return json.dumps(schema)


def _on_one_line(error: str) -> str:
    """Return the library's message on one line."""
    if error.startswith("NoExtension"):
        return "no text at all is in its language"
    return " ".join(error.partition("<non-verbose/>")[0].partition("<backtrace>")[0].split())[:300]


class GrammarStore:
    """The compiled grammars of a worker, and its tables of tokens.

    Compiled on any thread; the device thread copies them, one for each row.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._matchers: dict[bytes, LLMatcher] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._tokenizers: dict[bytes, LLTokenizer] = {}
        self._reading = threading.Lock()  # a table is read once, however many grammars wait for it

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar, unless it is here. Raise GrammarError."""
        with self._lock:
            self._idle.pop(grammar.key, None)
            if grammar.key in self._matchers:
                return
        with self._reading:
            tokenizer = self._tokenizers.get(grammar.vocabulary.key)
            if tokenizer is None:
                tokenizer = self._tokenizers[grammar.vocabulary.key] = read_tokenizer(grammar.vocabulary)
        matcher = compiled(grammar.form, grammar.text, tokenizer)
        with self._lock:
            self._matchers[grammar.key] = matcher

    def release(self, key: bytes) -> None:
        """Note that no sequence has a grammar; it is kept for the next one, if not too many others are."""
        with self._lock:
            if key in self._matchers:
                self._idle[key] = None
            while len(self._idle) > IDLE:
                old, _ = self._idle.popitem(last=False)
                del self._matchers[old]

    def matcher(self, key: bytes) -> LLMatcher | None:
        """Return a fresh matcher of a grammar; None: it is not compiled here."""
        with self._lock:
            found = self._matchers.get(key)
        return found.deep_copy() if found is not None else None


class RowGrammar:
    """The grammar of one row of the tables, with the state that its tokens lead to."""

    __slots__ = ("_eaten", "_ends_E", "_grammar", "_matcher", "_row_1W", "_store")

    def __init__(self, grammar: Grammar, store: GrammarStore) -> None:
        self._grammar, self._store = grammar, store
        self._matcher: LLMatcher | None = None  # None: no token has been drawn yet
        self._eaten = np.zeros(0, dtype=np.int32)
        self._ends_E = np.asarray(grammar.vocabulary.ends, dtype=np.int64)
        self._row_1W = np.zeros((1, -(-grammar.vocabulary.size // 32)), dtype=np.int32)

    def mask(self, output: np.ndarray) -> Mask:
        """Return the mask behind these tokens of the answer."""
        if np.isin(output, self._ends_E).any():
            return FREE  # the answer has ended before, and what is drawn now is dropped
        if self._matcher is None:
            self._matcher = self._store.matcher(self._grammar.key)
        if self._matcher is None:
            return OFF
        row_1W, size = self._row_1W, self._grammar.vocabulary.size
        inside = self._follow(self._matcher, output)
        if inside:
            self._matcher.unsafe_compute_mask_ptr(row_1W.ctypes.data, row_1W.nbytes)
        if self._matcher.is_error() and not self._matcher.is_accepting():
            # perhaps behind a draft that does not stand, so the next mask is made from the beginning
            self._matcher, self._eaten = None, self._eaten[:0]
            return OFF
        if not inside:
            return OUTSIDE
        allowed_V = np.unpackbits(row_1W.view(np.uint8)[0], bitorder="little", count=size).view(np.bool_)
        if self._grammar.to_the_end:
            ends_E = allowed_V[self._ends_E].copy()
            allowed_V[self._ends_E] = False
            if not allowed_V.any():
                allowed_V[self._ends_E] = ends_E
        return Mask(allowed_V) if allowed_V.any() else OFF

    def _follow(self, matcher: LLMatcher, output: np.ndarray) -> bool:
        """Bring the matcher to the state behind these tokens; return whether the grammar allows them."""
        common = min(self._eaten.size, output.size)
        if not np.array_equal(self._eaten[:common], output[:common]):
            common = int(np.flatnonzero(self._eaten[:common] != output[:common])[0])
        if common < self._eaten.size:
            matcher.rollback(self._eaten.size - common)
            self._eaten = self._eaten[:common]
        if common == output.size:
            return True
        count = matcher.try_consume_tokens(output[common:].tolist())
        self._eaten = output[: common + count].copy()
        return common + count == output.size


class Mask:
    """The allowed tokens at one position; ``allowed_V`` None: see ``FREE``, ``OUTSIDE`` and ``OFF``."""

    __slots__ = ("allowed_V",)

    def __init__(self, allowed_V: np.ndarray | None) -> None:
        self.allowed_V = allowed_V


FREE = Mask(None)  # the token does not count
OUTSIDE = Mask(None)  # the tokens before are not in the language; only drafts that do not stand may be so
OFF = Mask(None)  # the mask cannot be made


def masks(
    rows: Sequence[int], positions: Sequence[int], grammars: Sequence[RowGrammar | None], tokens: Any, prompt_length: Any
) -> dict[int, Mask]:
    """Return the masks of the drawn positions whose rows have a grammar, by their place in ``rows``.

    The positions of a row come in ascending order. One behind a draft that the grammar rejects does not count.
    """
    found: dict[int, Mask] = {}
    last: dict[int, Mask] = {}
    for n, (row, position) in enumerate(zip(rows, positions, strict=True)):
        grammar = grammars[row]
        if grammar is None:
            continue
        made = grammar.mask(tokens[row, int(prompt_length[row]) : position])
        if made is OUTSIDE:
            made = FREE if row in last else OFF
        found[n] = last[row] = made
    return found

"""Grammars in their compiled form, by llguidance (M. Moskal et al.), which is imported when the first grammar comes.

Its limits are counts of work, so that they are the same on every machine. ``row_grammars.py`` has the states of rows.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...policies.plan.grammar import CALLS, CLIENTS_LARK, JSON, JSON_OPTIONS, LARK, REGEX, Grammar, TokenVocabulary
from ..errors import CheckpointError
from ..weights.token_bytes import TokenBytes, token_bytes
from .free_turn import FreeTurn
from .turn_scanner import TokensByBytes, TurnScanner

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SPECIAL = b"\xff"  # begins the name of a token without text
AMBIGUOUS = 500  # ways that the parser of a client's grammar may follow at once
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


def limits(form: str) -> LLParserLimits:
    """Return the limits of one grammar's work.

    The time of a token grows with the square of the items in a row. A schema needs some for each property that may come; an
    ambiguous grammar has more with each token, and would hold up the rows beside it.
    """
    found: LLParserLimits = require().LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_items_in_row=AMBIGUOUS if form == CLIENTS_LARK else 2_000,
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


@dataclass(frozen=True, slots=True)
class ReadVocabulary:
    """A vocabulary in the library's form, and the bytes of its tokens."""

    tokenizer: LLTokenizer
    tokens: list[bytes]
    _indexes: list[TokensByBytes] = field(default_factory=list)  # made when a turn first needs it

    @property
    def index(self) -> TokensByBytes:
        """The tokens by their bytes."""
        if not self._indexes:
            self._indexes.append(TokensByBytes(self.tokens))
        return self._indexes[0]


def tokenizer_of(vocabulary: TokenVocabulary, table: TokenBytes) -> LLTokenizer:
    """Return the library's form of a vocabulary. Raise GrammarError if it cannot constrain an answer."""
    library = require()
    if table.digest != vocabulary.digest:
        raise GrammarError(f"{vocabulary.file} has changed since the model was added; add the model again")
    if not vocabulary.ends:
        raise GrammarError("the model has no end token, so no constrained answer could end; name its eos_token_id")
    tokens = _padded(table, vocabulary)
    special = sorted({*vocabulary.ends, *vocabulary.hidden} & set(range(vocabulary.size)))
    for id in special:
        tokens[id] = SPECIAL + f"<[{id}]>".encode()
    words = _Words(tokens, vocabulary.ends, special)
    made: LLTokenizer = library.LLTokenizer(library.TokenizerWrapper(words), eos_token=list(vocabulary.ends))
    words.made = made
    return made


def _padded(table: TokenBytes, vocabulary: TokenVocabulary) -> list[bytes]:
    return (table.tokens + [b""] * vocabulary.size)[: vocabulary.size]


def read_vocabulary(vocabulary: TokenVocabulary) -> ReadVocabulary:
    """Return a vocabulary from its file. Raise GrammarError."""
    try:
        table = token_bytes(Path(vocabulary.file))
    except CheckpointError as error:
        raise GrammarError(str(error)) from None
    return ReadVocabulary(tokenizer_of(vocabulary, table), _padded(table, vocabulary))


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
        matcher: LLMatcher = matcher_of(tokenizer, grammar, log_level=0, limits=limits(form))
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


@dataclass(slots=True)
class CompiledGrammar:
    """A grammar in its compiled form, and the key of its table of tokens.

    ``scanner``: of a turn that is free but for its calls.
    """

    matcher: LLMatcher
    vocabulary: bytes
    scanner: TurnScanner | None = None


def _compiled(grammar: Grammar, vocabulary: ReadVocabulary) -> CompiledGrammar:
    """Return a grammar in its compiled form. Raise GrammarError."""
    if grammar.form != CALLS:
        return CompiledGrammar(compiled(grammar.form, grammar.text, vocabulary.tokenizer), grammar.vocabulary.key)
    turn = FreeTurn.of(grammar.text)
    matcher = compiled(LARK, turn.call, vocabulary.tokenizer)
    textless = (*grammar.vocabulary.hidden, *grammar.vocabulary.ends)
    scanner = TurnScanner(turn, vocabulary.index, textless, vocabulary.tokenizer, matcher)
    return CompiledGrammar(matcher, grammar.vocabulary.key, scanner)


class GrammarStore:
    """The compiled grammars of a worker, and its tables of tokens.

    Compiled on any thread; the device thread copies them, one for each row. Which of them are here, and their memory, is
    decided elsewhere (``policies/memory/grammar_memory.py``). A table stays as long as a grammar of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grammars: dict[bytes, CompiledGrammar] = {}
        self._vocabularies: dict[bytes, ReadVocabulary] = {}
        self._reading = threading.Lock()  # a table is read once, however many grammars wait for it

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar, unless it is here. Raise GrammarError."""
        with self._lock:
            if grammar.key in self._grammars:
                return
        vocabulary = self._vocabulary(grammar.vocabulary)
        try:
            made = _compiled(grammar, vocabulary)
        except GrammarError:
            with self._lock:
                self._forget_tables()
            raise
        with self._lock:
            self._grammars[grammar.key] = made
            self._vocabularies[made.vocabulary] = vocabulary  # perhaps forgotten since

    def _vocabulary(self, vocabulary: TokenVocabulary) -> ReadVocabulary:
        """Return the table of a vocabulary; read it if it is not here."""
        with self._reading:
            with self._lock:
                if (found := self._vocabularies.get(vocabulary.key)) is not None:
                    return found
            made = read_vocabulary(vocabulary)
            with self._lock:
                self._vocabularies[vocabulary.key] = made
            return made

    def release(self, key: bytes) -> None:
        """Forget a grammar, and tables without grammars."""
        with self._lock:
            self._grammars.pop(key, None)
            self._forget_tables()

    def _forget_tables(self) -> None:
        used = {one.vocabulary for one in self._grammars.values()}
        for table in [table for table in self._vocabularies if table not in used]:
            del self._vocabularies[table]

    def matcher(self, key: bytes) -> LLMatcher | None:
        """Return a fresh matcher of a grammar; None: it is not compiled here."""
        with self._lock:
            found = self._grammars.get(key)
        return found.matcher.deep_copy() if found is not None else None

    def scanner(self, key: bytes) -> TurnScanner | None:
        """Return the scanner of a turn that is free but for its calls; None: it is not compiled here."""
        with self._lock:
            found = self._grammars.get(key)
        return found.scanner if found is not None else None

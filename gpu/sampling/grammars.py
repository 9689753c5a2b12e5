"""Grammars in their compiled form, by llguidance (M. Moskal et al.), which is imported when the first grammar comes.

Its limits are counts of work, so that they are the same on every machine. ``row_grammars.py`` has the states of rows.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
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

IDLE = 64  # compiled grammars that are kept although no sequence has them
IDLE_BYTES = 64 << 20  # of these
IDLE_TABLES = 2  # tables of tokens that are kept although no grammar needs them
BYTES_OF_TOKEN = 480  # in a table, as measured with 131,072 tokens
BYTES_IN_INDEX = 30  # for turns that are free but for their calls
GRAMMAR_BYTES, BYTES_OF_TEXT = 64 << 10, 128  # of a compiled grammar, and of each byte of its text, as measured
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
    def nbytes(self) -> int:
        """An estimate."""
        return (BYTES_OF_TOKEN + BYTES_IN_INDEX * len(self._indexes)) * len(self.tokens)

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
    """A grammar in its compiled form, and the key of its table of tokens. ``nbytes``: an estimate.

    ``scanner``: of a turn that is free but for its calls.
    """

    matcher: LLMatcher
    vocabulary: bytes
    nbytes: int
    scanner: TurnScanner | None = None


class GrammarStore:
    """The compiled grammars of a worker, and its tables of tokens.

    Compiled on any thread; the device thread copies them, one for each row. What no sequence needs is kept as long as it is
    little. Its bytes are estimates, because the library does not report its memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grammars: dict[bytes, CompiledGrammar] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._vocabularies: OrderedDict[bytes, ReadVocabulary] = OrderedDict()  # the last used last
        self._reading = threading.Lock()  # a table is read once, however many grammars wait for it

    @property
    def nbytes(self) -> int:
        """The bytes of all tables and grammars, about."""
        with self._lock:
            grammars = sum(one.nbytes for one in self._grammars.values())
            return grammars + sum(one.nbytes for one in self._vocabularies.values())

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar, unless it is here. Raise GrammarError."""
        with self._lock:
            self._idle.pop(grammar.key, None)
            if grammar.key in self._grammars:
                return
        vocabulary = self._vocabulary(grammar.vocabulary)
        nbytes = GRAMMAR_BYTES + BYTES_OF_TEXT * len(grammar.text)
        scanner: TurnScanner | None = None
        if grammar.form == CALLS:
            turn = FreeTurn.of(grammar.text)
            matcher = compiled(LARK, turn.call, vocabulary.tokenizer)
            textless = (*grammar.vocabulary.hidden, *grammar.vocabulary.ends)
            scanner = TurnScanner(turn, vocabulary.index, textless, vocabulary.tokenizer, matcher)
        else:
            matcher = compiled(grammar.form, grammar.text, vocabulary.tokenizer)
        with self._lock:
            self._grammars[grammar.key] = CompiledGrammar(matcher, grammar.vocabulary.key, nbytes, scanner)

    def _vocabulary(self, vocabulary: TokenVocabulary) -> ReadVocabulary:
        """Return the table of a vocabulary; read it if it is not here."""
        with self._reading:
            with self._lock:
                if (found := self._vocabularies.get(vocabulary.key)) is not None:
                    self._vocabularies.move_to_end(vocabulary.key)
                    return found
            made = read_vocabulary(vocabulary)
            with self._lock:
                self._vocabularies[vocabulary.key] = made
            return made

    def release(self, key: bytes) -> None:
        """Note that no sequence has a grammar; it is kept for the next one, if not too many others are."""
        with self._lock:
            if key in self._grammars:
                self._idle[key] = None
            while len(self._idle) > IDLE or sum(self._grammars[one].nbytes for one in self._idle) > IDLE_BYTES:
                old, _ = self._idle.popitem(last=False)
                del self._grammars[old]
            used = {one.vocabulary for one in self._grammars.values()}
            unused = [table for table in self._vocabularies if table not in used]
            for table in unused[: max(0, len(unused) - IDLE_TABLES)]:
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

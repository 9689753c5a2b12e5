"""One choice of an answer: turns a token stream into text that is safe to send, and counts its tokens.

It combines detokenization, the stop-string scanner, the echo and log-probabilities. It owns the text state of one sequence
and never writes to a connection.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...actors.gateway.port import Generation, StreamNews, TokenStream
from ...policies.plan.sweep_plan import TokenLogprob
from ...policies.sweep.events import PromptScored, TokensEmitted
from ..text.detokenize import Detokenizer
from ..text.stops import StopScanner
from ..text.tokenizer import TextCodec
from ..text.turn.reader import TurnDelta, TurnReader
from .fields import Options


@dataclass(slots=True)
class TextPiece:
    """One addition to an answer. Text may lag behind tokens: partial characters and possible stop strings are held back."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)  # one per token if the request asks for them
    offsets: list[int] = field(default_factory=list)  # start of each token's text, in characters of the answer
    finish: str = ""  # "" | "stop" | "length"
    stop_reason: str | int | None = None  # the stop string found, or the token of stop_token_ids
    shown_prompt: list[int] = field(default_factory=list)  # the echo's tokens, which do not count as the answer's
    deltas: list[TurnDelta] = field(default_factory=list)  # the text as the parts of a turn, if it is read as one

    def join(self, other: TextPiece) -> None:
        """Append a later piece."""
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        self.offsets += other.offsets
        self.shown_prompt += other.shown_prompt
        self.deltas += other.deltas
        self.finish, self.stop_reason = other.finish, other.stop_reason


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt as it is repeated before the answer: ``text``, and the offset of each of its tokens in it."""

    text: str
    offsets: list[int]


def decoded_echo(codec: TextCodec, tokens: Sequence[int], *, special: bool) -> Echo:
    """Return the echo of a prompt of tokens: their decoded text. ``special``: with special tokens."""
    detokenizer = codec.detokenizer(special=special)
    pieces = []
    offsets = []
    length = 0
    for token in tokens:
        text = detokenizer.push((token,))
        offsets.append(length + _lead(codec, token, text))
        pieces.append(text)
        length += len(text)
    return Echo("".join([*pieces, detokenizer.flush()]), offsets)


def _lead(codec: TextCodec, token: int, text: str) -> int:
    """Return the number of characters of ``text`` that were held back before a token and precede its own text."""
    own = codec.whole_text(token)
    return len(text) - len(own) if own and text.endswith(own) else 0


@dataclass(slots=True, eq=False)
class ChoiceText:
    """One choice (see the module). ``stops``: strings that end the answer. ``echo``: the echo, if any; it is shown once.

    ``reader``: reads the answer as a turn.
    """

    index: int
    generation: Generation
    stream: TokenStream
    codec: TextCodec
    _detokenizer: Detokenizer
    options: Options
    stops: Sequence[str] = ()
    _echo: Echo | None = None
    reader: TurnReader | None = None
    completion_tokens: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache, set with the first token
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # for all prompt tokens except the first, if requested
    started: bool = False  # part of this choice was written
    _scanner: StopScanner | None = None
    _offsets: array[int] = field(default_factory=lambda: array("I"))  # of all tokens, if there is a reader
    _length: int = 0  # detokenized characters, sent or held back
    _plain: bool = False  # its tokens are text and nothing else

    def __post_init__(self) -> None:
        self._scanner = StopScanner(self.stops) if self.stops else None
        self._length = len(self._echo.text) if self._echo is not None else 0
        self._plain = self._scanner is None and self.options.scored < 0 and self.reader is None and self.options.limit != 0

    @property
    def prompt(self) -> list[int]:
        return self.generation.prompt

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of the answer's thinking so far; None: it is not separated."""
        return None if self.reader is None else self.reader.reasoning_tokens(self._offsets)

    @property
    def looked(self) -> bool:
        """True if the prefix cache was searched."""
        return self.options.prompt_scored < 0 and not (self.options.echoed and self.options.scored >= 0)

    def take(self, news: StreamNews) -> TextPiece:
        """Return the text that news adds. Ends the stream if a stop string is found; tokens after it are dropped."""
        if isinstance(news, PromptScored):  # arrives before the first token
            self.prompt_logprobs = news.entries
            piece = TextPiece()
        elif self._plain:
            piece = self._take_together(news)
        elif self.options.limit == 0:
            piece = TextPiece(finish=news.finish and "length")
        else:
            piece = self._take_singly(news)
            if self._scanner is not None and self._scanner.found is not None:
                self.stream.stop()
            if self.reader is not None:
                self._offsets.extend(piece.offsets)
                piece.deltas = self.reader.feed(piece.text)
                piece.deltas += self.reader.finish(cut=piece.finish == "length") if piece.finish else []
        if self._echo is None:
            return piece
        whole, self._echo = self._echoed(self._echo), None
        whole.join(piece)
        return whole

    def read(self, tokens: Sequence[int]) -> TextPiece:
        """Return what the first tokens of an answer would add, without an effect on the stream. Use on a fresh choice."""
        return self._take_singly(TokensEmitted("", self.generation.id, 0, 0, [*tokens], [], ""))

    def _take_together(self, news: TokensEmitted) -> TextPiece:
        tokens = news.tokens
        if not news.finish:
            self.completion_tokens += len(tokens)
            return TextPiece(self._text(tokens), tokens)
        stop = self._stop_token(news)
        text = self._text(tokens) if stop is None else self._text(tokens[:-1]) + self._stop_text(stop)
        text += self._detokenizer.flush()
        self.completion_tokens += len(tokens)
        return TextPiece(text, tokens, finish=news.finish, stop_reason=self._reason(stop))

    def _text(self, tokens: Sequence[int]) -> str:
        return self._detokenizer.push(tokens) if tokens else ""

    def _stop_text(self, token: int) -> str:
        return self._text((token,)) if self.options.include_stop_str_in_output else ""

    def _stop_token(self, news: TokensEmitted) -> int | None:
        """Return the last token if it is a stop token that ended the sequence."""
        ended = news.finish == "stop" and news.tokens and news.tokens[-1] in self.generation.stop_tokens
        return news.tokens[-1] if ended else None

    def _reason(self, stop: int | None) -> int | None:
        """Return the stop token if the client set it, and None if it is the checkpoint's."""
        return stop if stop in self.options.stop_token_ids else None

    def _take_singly(self, news: TokensEmitted) -> TextPiece:
        """Process tokens one by one, because their offsets are wanted or one may complete a stop string."""
        piece, stop = TextPiece(), self._stop_token(news)
        last = len(news.tokens) - 1
        for i, token in enumerate(news.tokens):
            ends = stop is not None and i == last
            text = self._stop_text(token) if ends else self._text((token,))
            piece.offsets.append(self._length + (_lead(self.codec, token, text) if self.options.scored >= 0 else 0))
            piece.tokens.append(token)
            self.completion_tokens += 1
            if self._pass(piece, text) or self._pass(piece, self._unshown(token, ends=ends), hidden=True):
                break
        else:
            if news.finish and not self._pass(piece, self._detokenizer.flush()):
                piece.finish, piece.stop_reason = news.finish, self._reason(stop)
                piece.text += self._scanner.flush() if self._scanner else ""
        piece.logprobs = list(news.logprobs[: len(piece.tokens)]) if self.options.scored >= 0 else []
        return piece

    def _unshown(self, token: int, *, ends: bool) -> str:
        """Return the hidden text of a token: the name of a special token, or the text of a stop token."""
        if self._scanner is None:
            return ""
        hidden = self.options.skip_special_tokens and token in self.codec.special
        dropped = ends and not self.options.include_stop_str_in_output
        return self.codec.said(token) if hidden or dropped else ""

    def _pass(self, piece: TextPiece, text: str, *, hidden: bool = False) -> bool:
        """Pass text through the scanner; return True if a stop string ended the answer.

        ``hidden``: the text is scanned but not shown.
        """
        if not hidden:
            self._length += len(text)
        rules = self.generation.sampling.rules
        if self._scanner is None or (rules is not None and self.completion_tokens <= rules.min_tokens):
            piece.text += "" if hidden else text
            return False
        piece.text += self._scanner.push(text, hidden=hidden) if text else ""
        if self._scanner.found is None:
            return False
        piece.finish, piece.stop_reason = "stop", self._scanner.found
        if self.options.include_stop_str_in_output:
            piece.text += self._scanner.found
        return True

    def _echoed(self, echo: Echo) -> TextPiece:
        piece = TextPiece(echo.text, shown_prompt=list(self.prompt))
        if self.options.scored >= 0:
            piece.offsets = list(echo.offsets)
            piece.logprobs = [None, *self.prompt_logprobs]
        return piece

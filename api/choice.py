"""One choice of an answer: turns the gateway's deltas into text that may be sent, and keeps count.

Joins detokenization, the stop-string scanner and log-probabilities. Owns the state of one sequence's text; never writes to
a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.actors.gateway.port import Delta, Stream
from blockwright.api.detokenize import Detokenizer
from blockwright.api.stops import StopScanner
from blockwright.policies.plans import TokenLogprob


@dataclass(slots=True)
class Piece:
    """What one delta adds to an answer. Text may lag behind tokens: half characters and half stop strings are held."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one per token where they were asked for
    offsets: list[int] = field(default_factory=list)  # where each token's text begins, in characters of the answer
    finish: str = ""  # "" | "stop" | "length"
    stop_reason: str | None = None  # the stop string that was found


class Choice:
    """See the module."""

    __slots__ = (
        "_detokenizer",
        "_length",
        "_logprobs",
        "_scanner",
        "completion_tokens",
        "index",
        "prompt",
        "started",
        "stream",
    )

    def __init__(
        self,
        index: int,
        prompt: list[int],
        stream: Stream,
        detokenizer: Detokenizer,
        stops: tuple[str, ...],
        logprobs: bool,
    ) -> None:
        self.index, self.prompt, self.stream = index, prompt, stream
        self.completion_tokens = 0
        self.started = False  # something of this choice was written
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops) if stops else None
        self._logprobs = logprobs
        self._length = 0  # characters detokenized, whether sent or held back

    def take(self, delta: Delta) -> Piece:
        """Ends the stream when a stop string is found; tokens after it are dropped."""
        tokens = delta.tokens
        if self._scanner is None and not self._logprobs:
            shown = tokens if delta.stop_token is None else tokens[:-1]
            text = self._detokenizer.push(shown) if shown else ""
            if delta.finish:
                text += self._detokenizer.flush()
            self.completion_tokens += len(tokens)
            return Piece(text, tokens, finish=delta.finish)
        return self._take_singly(delta)

    def _take_singly(self, delta: Delta) -> Piece:
        """Token by token: where each begins is wanted, or which one completes a stop string."""
        piece = Piece()
        last = len(delta.tokens) - 1
        for i, token in enumerate(delta.tokens):
            piece.offsets.append(self._length)
            text = "" if delta.stop_token is not None and i == last else self._detokenizer.push((token,))
            piece.tokens.append(token)
            self.completion_tokens += 1
            if self._pass(piece, text):
                break
        else:
            if delta.finish and not self._pass(piece, self._detokenizer.flush()):
                piece.finish = delta.finish
                piece.text += self._scanner.flush() if self._scanner else ""
        piece.logprobs = delta.logprobs[: len(piece.tokens)] if self._logprobs else []
        return piece

    def _pass(self, piece: Piece, text: str) -> bool:
        """Through the scanner; True when a stop string ended the answer."""
        self._length += len(text)
        if self._scanner is None:
            piece.text += text
            return False
        piece.text += self._scanner.push(text)
        if self._scanner.found is None:
            return False
        piece.finish, piece.stop_reason = "stop", self._scanner.found
        self.stream.stop()
        return True

"""The workload of a benchmark: lengths, arrivals and prompts, all from one seed.

Pure. Prompts are token ids if the endpoint accepts them (then their length is exact), else words of about that many tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...simulator.traces import BLOCK, TraceRequest

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The material of prompts: existing ids, and the mean number of characters of a token in plain words."""

    ids: tuple[int, ...]
    characters: float


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``at``: seconds since the beginning of the run. ``max_tokens``: None for the server's default."""

    at: float
    prompt: str | list[int]
    max_tokens: int | None


def arrivals(count: int, rate: float | None, law: str, source: random.Random) -> list[float]:
    """Return arrival times in seconds. ``rate``: per second; None: all at once. ``law``: "poisson" or "constant"."""
    if rate is None:
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += source.expovariate(rate) if law == "poisson" else 1 / rate
    return times


def random_lengths(count: int, prompt: int, output: int, spread: float, source: random.Random) -> list[TraceRequest]:
    """Return lengths drawn evenly from ``length * (1 - spread)`` to ``length * (1 + spread)``, for prompt and answer."""

    def draw(length: int) -> int:
        return max(source.randint(round(length * (1 - spread)), round(length * (1 + spread))), 1)

    return [TraceRequest(None, draw(prompt), draw(output)) for _ in range(count)]


def clip(shapes: Sequence[TraceRequest], context: int) -> tuple[list[TraceRequest], int]:
    """Return shapes that fit into ``context`` tokens (0: unlimited), and the number of shortened ones.

    An answer is shortened to half of the context at most, then the prompt to the rest.
    """
    made, clipped = [], 0
    for one in shapes:
        output = min(one.output, context // 2) if context and one.prompt + one.output > context else one.output
        prompt = min(one.prompt, context - output) if context else one.prompt
        clipped += (prompt, output) != (one.prompt, one.output)
        made.append(TraceRequest(one.at, prompt, output, one.blocks))
    return made, clipped


def requests(
    shapes: Sequence[TraceRequest],
    times: Sequence[float],
    vocabulary: Vocabulary,
    *,
    text: bool,
    prefix: int,
    source: random.Random,
) -> Iterator[Request]:
    """Yield a prompt for each shape. ``prefix``: tokens with which all begin. ``text``: words instead of token ids."""
    salt = source.random()
    common = _tokens(vocabulary, random.Random(f"{salt} prefix"), prefix)
    for shape, at in zip(shapes, times, strict=True):
        if shape.blocks:
            found: list[int] = []
            for block in shape.blocks:
                found += _tokens(vocabulary, random.Random(f"{salt} {block}"), BLOCK)
                if len(found) >= shape.prompt:
                    break
            tokens = found + _tokens(vocabulary, source, shape.prompt - len(found))
        else:
            tokens = common + _tokens(vocabulary, source, shape.prompt - len(common))
        tokens = tokens[: shape.prompt]
        yield Request(at, _words(tokens, vocabulary) if text else tokens, shape.output)


def _tokens(vocabulary: Vocabulary, source: random.Random, count: int) -> list[int]:
    return source.choices(vocabulary.ids, k=count) if count > 0 else []


def _words(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    """Return words of about this many tokens. Equal ids give equal words, so that equal beginnings stay equal."""
    made = []
    for token in tokens:
        size = max(round(vocabulary.characters) - 1, 1)
        letters = random.Random(token)
        made.append("".join(letters.choices(LETTERS, k=size)))
    return " ".join(made)[: max(round(len(tokens) * vocabulary.characters), 1)]

"""Sampling options of a sequence as numbers; ``gpu/sampling/sampler.py`` has the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

from .grammar import Grammar
from .pooling import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The rules for allowed tokens, whatever their scores. Ids are within the vocabulary.

    phrases: (ids, addend): the addend is added to the logit of the last id where the other ids come just before it, in the
    prompt or the output.
    """

    allowed: list[int] = field(default_factory=list)  # only these; empty: all
    banned: list[list[int]] = field(default_factory=list)  # token sequences that the output never completes
    barred: list[list[int]] = field(default_factory=list)  # the same for prompt and output together
    phrases: list[tuple[list[int], float]] = field(default_factory=list)  # see below
    barred_first: list[int] = field(default_factory=list)  # never the first output token
    no_repeat: int = 0  # no sequence of this many tokens comes twice in prompt and output; 0: off
    bias: list[tuple[int, float]] = field(default_factory=list)  # added to the logit of a token id
    min_tokens: int = 0  # output tokens before one of ``ends`` may come
    ends: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One sequence's sampling options, complete: defaults are resolved and a seed is drawn before this is made.

    A token is ``argmax(logit / temperature + gumbel(seed, choice, position, token id))`` after rules, penalties and
    truncation; with ``temperature`` 0 it is the plain argmax. ``position`` is the index of the new token in the sequence
    (prompt included), so a sequence that is rerun elsewhere draws the same noise.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # a token needs this fraction of the best one's probability
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    seed: int = 0  # 64 bits, unsigned
    choice: int = 0  # index among the n choices of one request
    logprobs: int = -1  # -1: none; k >= 0: the chosen token's and the k best
    prompt_logprobs: int = -1  # the same for each prompt token except the first
    rules: TokenRules | None = None  # None for most sequences
    grammar: Grammar | None = None  # the language of the answer; its state follows from the tokens
    pooling: Pooling | None = None  # the vector that it gives in place of a token; nothing is drawn then
    rejection: bool = False  # drafts are judged by the rule of speculative sampling (``gpu/sampling/rejection.py``)

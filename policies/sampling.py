"""How the next token of a sequence is chosen: the numbers, not the arithmetic (that is ``gpu/sampler.py``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One sequence's sampling, complete: defaults are resolved and a seed is drawn before this is made.

    A token is ``argmax(logit / temperature + gumbel(seed, choice, position, token id))`` after penalties and
    truncation; with ``temperature`` 0 the plain argmax. ``position`` is the index of the new token in the sequence
    (prompt included), so a sequence that is run again elsewhere draws the same noise.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    seed: int = 0  # 64 bits, unsigned
    choice: int = 0  # index among the n choices of one request
    logprobs: int = -1  # -1: none; k >= 0: the chosen token's and the k best

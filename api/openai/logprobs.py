"""Log-probabilities (``logprobs``) in OpenAI's forms for completions and chat, and in vLLM's form for prompts.

Completions have columns, chats a list of objects. A token that is part of a character has no text of its own: it is written
as its bytes, escaped. Minus infinity, which JSON cannot represent, becomes -9999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...policies.plan.sweep_plan import TokenLogprob
from ..text.tokenizer import TextCodec
from .choice import TextPiece

LOWEST = -9999.0


def _text(data: bytes, prefix: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def completion_logprobs(codec: TextCodec, piece: TextPiece, k: int) -> dict[str, Any]:
    """Return ``tokens``, ``token_logprobs``, ``top_logprobs`` (the ``k`` best and the chosen one), ``text_offset``.

    The echo's tokens come first; the very first one has no probability.
    """
    tokens = [_text(codec.token_bytes(token), "bytes:") for token in (*piece.shown_prompt, *piece.tokens)]
    tops: list[dict[str, float] | None] = []
    for text, entry in zip(tokens, piece.logprobs, strict=True):
        if entry is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for token, logprob in entry.top[:k]:
            top.setdefault(_text(codec.token_bytes(token), "bytes:"), _finite(logprob))
        top.setdefault(text, _finite(entry.logprob))
        tops.append(top)
    chosen = [None if entry is None else _finite(entry.logprob) for entry in piece.logprobs]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": list(piece.offsets)}


def chat_logprobs(codec: TextCodec, piece: TextPiece) -> dict[str, Any]:
    """Return ``content``: one object for each token."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = codec.token_bytes(token)
        return {"token": _text(data), "logprob": _finite(logprob), "bytes": list(data)}

    content = []
    for token, entry in zip(piece.tokens, piece.logprobs, strict=True):
        assert entry is not None, "a chat has no echo"
        top = [one(other, logprob) for other, logprob in entry.top]
        content.append(one(token, entry.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def prompt_logprobs(codec: TextCodec, prompt: Sequence[int], entries: Sequence[TokenLogprob], k: int) -> list[Any]:
    """Return None for the first token, and for each other an object by token id: the token itself, and the ``k`` best."""

    def one(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": _text(codec.token_bytes(token))}

    made: list[Any] = [None]
    for token, entry in zip(prompt[1:], entries, strict=True):
        own = {str(token): one(token, entry.logprob, entry.rank)}
        best = {str(t): one(t, logprob, rank) for rank, (t, logprob) in enumerate(entry.top[:k], 1)}
        made.append({**best, **own})
    return made

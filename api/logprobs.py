"""Log-probabilities in OpenAI's two forms: columns for completions, a list of objects for chat.

A token that is part of a character has no text of its own: it is written as its bytes, escaped. Minus infinity, which JSON
cannot write, becomes -9999.
"""

from __future__ import annotations

from typing import Any

from blockwright.api.choice import Piece
from blockwright.api.tokenizer import TextCodec

LOWEST = -9999.0


def _text(data: bytes, prefix: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def completion_logprobs(codec: TextCodec, piece: Piece) -> dict[str, Any]:
    """``tokens``, ``token_logprobs``, ``top_logprobs`` (the chosen token is always in it), ``text_offset``."""
    tokens = [_text(codec.token_bytes(token), "bytes:") for token in piece.tokens]
    tops = []
    for text, entry in zip(tokens, piece.logprobs, strict=True):
        top: dict[str, float] = {}
        for token, logprob in entry.top:
            top.setdefault(_text(codec.token_bytes(token), "bytes:"), _finite(logprob))
        top.setdefault(text, _finite(entry.logprob))
        tops.append(top)
    chosen = [_finite(entry.logprob) for entry in piece.logprobs]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": list(piece.offsets)}


def chat_logprobs(codec: TextCodec, piece: Piece) -> dict[str, Any]:
    """``content``: one object for each token."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = codec.token_bytes(token)
        return {"token": _text(data), "logprob": _finite(logprob), "bytes": list(data)}

    content = []
    for token, entry in zip(piece.tokens, piece.logprobs, strict=True):
        top = [one(other, logprob) for other, logprob in entry.top]
        content.append(one(token, entry.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}

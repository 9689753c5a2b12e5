"""Scores of pairs of texts: a reranker's verdict on a prompt of both, or the similarity of two vectors.

A reranker's prompt is its chat template's, if that prints messages of the roles query and document, as sentence-transformers
has them; else it is the one of the model card of Qwen3-Reranker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul, sub

from ...gpu.weights.embedder import COSINE, DOT, Reranker
from ..errors import ApiError, bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from ..text.chat_template import Rendering

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEGIN, _END = "<|im_start|>", "<|im_end|>"
_JUDGE = (
    f"{_BEGIN}system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note "
    f'that the answer can only be "yes" or "no".{_END}\n{_BEGIN}user\n'
)
_ANSWER = f"{_END}\n{_BEGIN}assistant\n<think>\n\n</think>\n\n"
Vector = Sequence[float]


async def pair_text(
    front: Front, served: ServedModel, judge: Reranker, instruction: str | None, pair: tuple[str, str]
) -> str:
    """Return the prompt on which a reranker judges a query and a document. Raise a 400."""
    query, document = pair
    wanted = judge.instruction if instruction is None else instruction
    template = served.template
    if template is not None and template.takes_pairs:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if wanted:
            messages = [{"role": "system", "content": wanted}, *messages]
        how = Rendering(False, False, {}, front.max_body)
        text = template.render_short(messages, how)
        return text if text is not None else await front.run_in_thread(lambda: template.render(messages, how))
    if served.codec.id_of(_BEGIN) is None:
        message = "its chat template prints no messages of the roles query and document; add one that does"
        raise bad_request(f"the reranker has no prompt for pairs: {message}", "model", "no_chat_template")
    return f"{_JUDGE}<Instruct>: {wanted or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}{_ANSWER}"


def verdict(judge: Reranker, logits: Vector) -> float:
    """Return the score of a pair from the logits of yes and, if the model has one, no."""
    difference = logits[0] - (logits[1] if len(logits) > 1 else 0.0)
    if not judge.sigmoid:
        return difference
    return 1.0 / (1.0 + math.exp(-difference)) if difference >= 0 else 1.0 - 1.0 / (1.0 + math.exp(difference))


def similarity(name: str) -> Callable[[Vector, Vector], float]:
    """Return the similarity of this name; more is nearer, as in sentence-transformers."""
    ways: dict[str, Callable[[Vector, Vector], float]] = {
        COSINE: _cosine,
        DOT: _dot,
        "euclidean": lambda one, other: -math.dist(one, other),
        "manhattan": lambda one, other: -math.fsum(map(abs, map(sub, one, other))),
    }
    if name not in ways:
        raise ApiError(500, f"similarity {name!r} is not known")
    return ways[name]


def _dot(one: Vector, other: Vector) -> float:
    return math.fsum(map(mul, one, other))


def _cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return max(-1.0, min(1.0, _dot(one, other) / lengths)) if lengths else 0.0

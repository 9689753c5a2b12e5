"""The kinds of models and their uses: a model generates, an embedder gives vectors, a reranker judges pairs."""

from __future__ import annotations

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.embedder import Embedder, Pooled
from ..errors import bad_request
from ..http.catalog import ServedModel

_FILES = "an embedder's folder has a modules.json with a Pooling"


def embedder_of(info: ModelInfo, served: ServedModel) -> Embedder:
    """Return the model's way to vectors. Raise a 400 if it has none."""
    if isinstance(served.pooled, Embedder):
        return served.pooled
    if served.pooled is not None:
        message = f"{info.id} is a reranker and gives no vectors; use POST /v1/rerank or /v1/score, or name an embedder"
    else:
        message = f"{info.id} generates text and gives no vectors; name an embedder ({_FILES}), or use POST /v1/completions"
    raise bad_request(message, "model", "unsupported_model")


def judge_of(info: ModelInfo, served: ServedModel) -> Pooled:
    """Return the model's way to scores of pairs. Raise a 400 if it has none."""
    if served.pooled is None:
        message = (
            f"{info.id} generates text and scores no pairs; name an embedder ({_FILES}), or a reranker (with a LogitScore, "
            'or with classifier_from_token = ["no", "yes"] in config.json)'
        )
        raise bad_request(message, "model", "unsupported_model")
    return served.pooled

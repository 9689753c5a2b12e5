"""The grammar of a request: its constraint, checked, with the tokens of the model that it chooses from."""

from __future__ import annotations

from pathlib import Path

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.checkpoint_files import TOKENIZER, CheckpointFiles
from ...policies.plan.grammar import Grammar, TokenVocabulary
from ..errors import ApiError, bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from .fields import Options


async def grammar_of(front: Front, info: ModelInfo, served: ServedModel, options: Options) -> Grammar | None:
    """Return the grammar of a request's answers, or None; raise a 400 for one that cannot be held exactly."""
    for constraint in options.constraints:
        vocabulary = await _vocabulary(front, info, served, constraint.field)
        if fault := await front.grammars.fault(constraint.form, constraint.text):
            message = f"{constraint.field} cannot be held exactly: {fault}"
            raise bad_request(message, constraint.field, "unsupported_constraint")
        return Grammar(form=constraint.form, text=constraint.text, vocabulary=vocabulary, to_the_end=options.ignore_eos)
    return None


async def _vocabulary(front: Front, info: ModelInfo, served: ServedModel, field: str) -> TokenVocabulary:
    """Return the tokens of a model. Raise a 400 if they cannot be constrained."""
    codec = served.codec
    if codec.missing:
        raise bad_request(codec.missing, field)
    ends = sorted(token for token in served.stop_tokens if token < served.vocabulary)
    if not ends:
        why = f"{info.id} has no end token, so no constrained answer could end; name its eos_token_id in config.json"
        raise bad_request(why, field)
    file = CheckpointFiles(*map(Path, info.folders)).of_tokenizer().find(TOKENIZER)
    facts = await front.grammars.table(file, served.vocabulary, sorted(codec.special), codec.token_bytes)
    if facts.fault:
        raise ApiError(400, facts.fault, param=field, code="unsupported_constraint")
    return TokenVocabulary(file=str(file), digest=facts.digest, size=served.vocabulary, ends=ends, hidden=facts.hidden)

"""The drafts of a request to a model: its fields, the settings, and the tokens of its prediction."""

from __future__ import annotations

from ...actors.gateway.port import ModelInfo
from ...policies.drafts.choice import OFF, draft_options, exit_fault, exits_below
from ...policies.drafts.options import DraftOptions
from ..checks import shown
from ..errors import bad_request
from ..http.catalog import ServedModel
from ..http.context import Front
from .fields import Options


async def drafts_of(
    front: Front, info: ModelInfo, served: ServedModel, options: Options, *, may_lack: bool = False
) -> DraftOptions | None:
    """Return the drafts of each of a request's sequences, or None; raise a 400 for one that cannot be used.

    ``may_lack``: a named tier that the model does not pass leaves it without drafts by a tier.
    """
    settings = front.settings
    prediction = await _predicted(front, info, served, options)
    tokens = settings.drafting.draft_tokens if options.draft_tokens is None else options.draft_tokens
    exits = exits_below(info.id, info.base, {one.id: one.family for one in front.catalog.models()})
    if options.draft is not None and not may_lack and (fault := exit_fault(options.draft, info.id, exits)):
        raise bad_request(f"draft is {shown(options.draft)}, {fault}", "draft")
    return draft_options(settings.drafting.drafts, info.id, options.draft, tokens, prediction, exits)


async def _predicted(front: Front, info: ModelInfo, served: ServedModel, options: Options) -> list[int]:
    """Return the tokens of the predicted answer, without special tokens; none if the request has drafts off."""
    if not options.prediction or options.draft == OFF:
        return []
    tokens = await front.catalog.encode(served, options.prediction, special=False, name="prediction")
    if len(tokens) > info.max_length:
        message = f"prediction has {len(tokens)} tokens, more than the context of {info.id} holds ({info.max_length})"
        raise bad_request(f"{message}; shorten it", "prediction", "context_length_exceeded")
    if (bad := next((token for token in tokens if token >= served.vocabulary), None)) is not None:
        message = f"prediction has the token id {shown(bad)}, which is not in the vocabulary of {info.id}"
        raise bad_request(f"{message}; leave that text out", "prediction")
    return tokens

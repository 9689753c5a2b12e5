"""The drafts of a request to a model: its fields, the settings, and the tokens of its prediction."""

from __future__ import annotations

from functools import lru_cache, partial

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.embedder import Embedder
from ...gpu.weights.token_table import same_tokens, token_table
from ...policies.adaptive.speculation import drafting_chain
from ...policies.drafts.choice import OFF, draft_options, exit_fault, exits_below, mode_of, names_model
from ...policies.drafts.draft_model import DraftParty, draft_model_fault, no_model
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

    ``may_lack``: a named tier that the model does not pass, or a model that cannot draft for it, leaves it without drafts by
    these.
    """
    settings = front.settings
    prediction = await _predicted(front, info, served, options)
    tokens = settings.drafting.draft_tokens if options.draft_tokens is None else options.draft_tokens
    exits = exits_below(info.id, info.base, {one.id: one.family for one in front.catalog.models()})
    if options.draft is not None and not may_lack and (fault := exit_fault(options.draft, info.id, exits)):
        raise bad_request(f"draft is {shown(options.draft)}, {fault}", "draft")
    modes, reason = settings.drafting.drafts, ""
    if info.id in settings.drafting.speculating and options.draft is None:
        modes = {info.id: drafting_chain(info.id)}
    elif names_model(mode := mode_of(modes, info.id, options.draft)):
        reason = await _model_fault(front, info, served, mode, exits)
        if reason and options.draft is not None and not may_lack:
            raise bad_request(f"draft is {shown(mode)}, {reason}", "draft")
    return draft_options(modes, info.id, options.draft, tokens, prediction, exits, reason)


async def _model_fault(front: Front, info: ModelInfo, served: ServedModel, name: str, exits: list[str]) -> str:
    """Return the second half of a sentence on a model that cannot draft for ``info``, or an empty text."""
    models = {one.id: one for one in front.catalog.models()}
    if (draft := models.get(name)) is None:
        return no_model(name, models)
    bases, families = ({id: getattr(one, what) for id, one in models.items()} for what in ("base", "family"))
    beside = await front.catalog.load(draft)
    party = partial(DraftParty.of, bases=bases, families=families)
    target = party(info.id, vocabulary=served.vocabulary, virtual=info.virtual)
    embeds = isinstance(beside.pooled, Embedder)
    drafting = party(name, vocabulary=beside.vocabulary, virtual=draft.virtual, chooses=bool(draft.starts), embeds=embeds)
    if fault := draft_model_fault(target, drafting, exits):
        return fault
    if served.codec is beside.codec:
        return ""
    tables = [await front.run_in_thread(partial(_token_table, one.folders, one.created)) for one in (info, draft)]
    return draft_model_fault(target, drafting, exits, partial(same_tokens, *tables))


@lru_cache(maxsize=64)
def _token_table(folders: tuple[str, ...], created: int) -> bytes:
    """Return the digest of a model's tokens, kept while it is served: another one in the same folder is created later."""
    return token_table(folders)


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

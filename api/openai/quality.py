"""The tier of a request to a family: the model that its ``quality`` asks for, and the rule of ``NAME:auto``."""

from __future__ import annotations

from ...actors.gateway.port import AutoTier, ModelInfo
from ...policies.model.tier_choice import asked_model
from ..errors import bad_request
from ..http.catalog import ServedModel
from ..http.context import CallContext, Front
from .drafts import drafts_of
from .fields import Options

VARIANT = "x-variant"  # header of an answer: the variant that answered in the model's place
TIER = "x-tier"  # header of an answer: the model id of the tier that answered


async def find_model(front: Front, asking: CallContext, options: Options) -> ModelInfo:
    """Return the model of a request, which is the tier that ``quality`` names. Raise the errors of ``Front.find``.

    Raise a 400 for a model without tiers, and for another tier than ``quality`` names.
    """
    if options.quality is None:
        return await front.find(asking, options.model)
    families = {one.id: one.tiers for one in front.port.models() if one.tiers}
    model, fault = asked_model(options.model or front.port.default_model(), options.quality, families)
    if fault:
        await front.find(asking, options.model)  # a model that is not there, or is not allowed, comes before its tiers
        raise bad_request(fault, "quality")
    return front.model(asking, model)


async def auto_tier(front: Front, info: ModelInfo, served: ServedModel, options: Options, sequences: int) -> AutoTier | None:
    """Return the rule by which a request chooses its tier; None for a model that is no choice.

    ``sequences``: of the request.
    """
    if not info.starts:
        return None
    rule = front.settings.tiering.rule(info.family, info.threshold)
    drafts = await drafts_of(front, front.catalog.info(info.family), served, options)
    return AutoTier(top=info.family, threshold=rule, sequences=sequences, drafts=drafts)

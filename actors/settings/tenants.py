"""The settings of tenants: the models that each may use, its limits and its shares."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

from ...policies.requests.account import SIDES
from ...policies.requests.urgency import NAMED_CLASSES
from .errors import SettingsError
from .models import MOST_WEIGHT, ModelSettings, listed
from .part import AllowedTexts, Bounds, Counts, SettingsPart, Texts

RATE_LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests")
_LIMIT = Bounds("at least 1, or leave it out for no limit", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings(SettingsPart):
    """The rights, limits and shares of tenants."""

    tenant_models: Annotated[Texts, "tenant: model ids it may use, separated by commas; default: all"] = field(
        default_factory=dict
    )
    requests_per_minute: Annotated[Counts, "tenant: requests per minute; * for tenants without an entry", _LIMIT] = field(
        default_factory=dict
    )
    tokens_per_minute: Annotated[Counts, "tenant: prompt and answer tokens per minute; * as above", _LIMIT] = field(
        default_factory=dict
    )
    tokens_per_day: Annotated[Counts, "tenant: prompt and answer tokens per day (UTC); * as above", _LIMIT] = field(
        default_factory=dict
    )
    concurrent_requests: Annotated[Counts, "tenant: requests running or waiting at a time; * as above", _LIMIT] = field(
        default_factory=dict
    )
    tenant_classes: Annotated[
        Texts,
        "tenant: highest service class that its requests may have: urgent (the default), normal or batch; * for others",
        AllowedTexts(*NAMED_CLASSES),
    ] = field(default_factory=dict)
    tenant_weights: Annotated[
        Counts,
        "tenant (or application, without keys): its share of a worker's time; * for others, else 1",
        Bounds(f"1 to {MOST_WEIGHT}", 1, MOST_WEIGHT),
    ] = field(default_factory=dict)
    tenant_kv_share: Annotated[
        dict[str, float],
        "tenant or application: the most of a worker's KV memory it may hold, 0 to 1; * for others; :left and :right for "
        "the two sides of offline batches",
        Bounds("more than 0, at most 1 (all KV memory)", 0, 1, above=True),
    ] = field(default_factory=dict)

    def check_names(self, tenants: Collection[str], models: ModelSettings) -> None:
        """Refuse tenants that have no key, and models that are not served."""
        for name in ("tenant_models", "tenant_classes", *RATE_LIMITS):
            for tenant in getattr(self, name):
                if tenant not in tenants and (tenant != "*" or name == "tenant_models"):
                    raise SettingsError(f"{name}.{tenant} names no tenant that has a key; there are: {listed(tenants)}")
        self._check_accounts(tenants, models)
        for tenant, served in self.tenant_models.items():
            for model in served.split(","):
                if not (models.may_serve(model.strip()) or models.more_may_come):
                    there = f"which is not served; there are: {listed(models.applications)}"
                    raise SettingsError(f"tenant_models.{tenant} names {model.strip()!r}, {there}")

    def _check_accounts(self, tenants: Collection[str], models: ModelSettings) -> None:
        """Refuse shares of unknown accounts. Without keys, each model is an account."""
        accounts = tenants or models.applications.keys()
        anything = models.more_may_come and not tenants
        for name in ("tenant_weights", "tenant_kv_share"):
            known = {*accounts, "*", *(SIDES if name == "tenant_kv_share" else ())}
            for account in getattr(self, name):
                if not (anything or account in known or (not tenants and models.may_serve(account))):
                    kind = "tenant that has a key" if tenants else "application"
                    raise SettingsError(f"{name}.{account} names no {kind}; there are: {listed(accounts)}")

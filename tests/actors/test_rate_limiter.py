"""The limiter actor: limits from settings, one account for all gateways, places of a gateway that died."""

from __future__ import annotations

import pytest

from blockwright.actors.rate_limiter import Limiter, limits_of
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.policies.requests.rate_limit import Limits
from blockwright.runtime import Node
from blockwright.runtime.base.down import Down
from blockwright.tests.claims import claim

KEYS = {"k1": "acme", "k2": "free"}


def test_limits_of_settings() -> None:
    settings = Settings(
        api_keys=KEYS, requests_per_minute={"acme": 60, "*": 6}, tokens_per_day={"*": 1000}, concurrent_requests={"acme": 2}
    )
    assert limits_of(settings.tenants) == {
        "*": Limits(requests_per_minute=6, tokens_per_day=1000),
        "acme": Limits(requests_per_minute=60, tokens_per_day=1000, concurrent_requests=2),
    }
    assert limits_of(Settings().tenants) == {}


def test_limits_that_cannot_be() -> None:
    with pytest.raises(
        SettingsError, match=r"requests_per_minute.nobody names no tenant that has a key; there are: acme, free"
    ):
        Settings(api_keys=KEYS, requests_per_minute={"nobody": 1})
    with pytest.raises(SettingsError, match=r"tokens_per_day.acme is 0; give at least 1"):
        Settings(api_keys=KEYS, tokens_per_day={"acme": 0})
    with pytest.raises(SettingsError, match=r"tenant_weights.a names no tenant that has a key; there are: acme, free"):
        Settings(api_keys=KEYS, applications={"a": "/a"}, tenant_weights={"a": 2})
    with pytest.raises(SettingsError, match=r"tenant_kv_share.b names no application; there are: a"):
        Settings(applications={"a": "/a"}, tenant_kv_share={"b": 0.5})
    with pytest.raises(SettingsError, match=r"tenant_weights.a is 0; give 1 to 1000"):
        Settings(applications={"a": "/a"}, tenant_weights={"a": 0})
    with pytest.raises(SettingsError, match=r"tier_weights.a:1 is 0; give 1 to 1000"):
        Settings(applications={"a": "/a"}, tier_weights={"a:1": 0})
    with pytest.raises(SettingsError, match=r"tier_weights.b names no application; there are: a"):
        Settings(applications={"a": "/a"}, tier_weights={"b": 2})
    with pytest.raises(SettingsError, match=r"class_ageing is -1.0; give seconds, 0 \(never\) to 86400"):
        Settings(class_ageing=-1.0)
    with pytest.raises(SettingsError, match=r"tenant_classes.acme is 'fast'; choose one of urgent, normal, batch"):
        Settings(api_keys=KEYS, tenant_classes={"acme": "fast"})
    with pytest.raises(SettingsError, match=r"tenant_classes.nobody names no tenant that has a key"):
        Settings(api_keys=KEYS, tenant_classes={"nobody": "normal"})
    with pytest.raises(SettingsError, match=r"tenant_kv_share.\* is 1.5; give more than 0, at most 1"):
        Settings(applications={"a": "/a"}, tenant_kv_share={"*": 1.5})
    with pytest.raises(SettingsError, match=r"tenant_models.acme names 'b', which is not served; there are: a"):
        Settings(api_keys=KEYS, applications={"a": "/a"}, tenant_models={"acme": "a, b"})
    with pytest.raises(SettingsError, match="tls_key is missing"):
        Settings(tls_cert="/cert.pem")


@claim("Quotas by requests, tokens and concurrency hold over all gateways", of="security")
async def test_one_account_for_all_gateways_and_a_dead_ones_places_are_freed() -> None:
    node = Node("head", listen=False)
    await node.start()
    limiter = Limiter({"acme": Limits(concurrent_requests=2)})
    ref = await node.spawn(limiter, name="limiter")
    watched: list[str] = []
    node.monitor = lambda name, on_down: watched.append(name)  # type: ignore[assignment,func-returns-value,return-value]
    assert not (await ref.admit("head", "acme", 5)).refused
    assert not (await ref.admit("g1", "acme", 5)).refused
    assert (await ref.admit("head", "acme", 5)).refused == "concurrent_requests"
    assert watched == ["g1"]
    limiter._gone(Down("g1", 1, "exited -9"))
    assert not (await ref.admit("head", "acme", 5)).refused
    ref.end.cast("head", "acme", 5, 3)
    assert not (await ref.admit("head", "acme", 5)).refused
    await node.stop()

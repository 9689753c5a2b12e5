"""Multi-tenancy, whose account a request is on: its fair share of a worker's time, its KV pages, its place in a crowded
gateway.

Decided here alone. With API keys an account is a tenant. Without them nobody can be told from anybody, and every application
is an account: twenty applications on one server share it fairly.

Offline requests are on accounts of their own, one for each side of the dual scanner: they take nothing from anybody, and
what each side holds is counted apart.
"""

from __future__ import annotations

SIDES = (":left", ":right")


def account_of(tenant: str, application: str) -> str:
    """``tenant``: of the API key; empty without keys."""
    return tenant or application


def is_only_account(tenants: int, configured: int, served: int) -> bool:
    """Whether no other account than one can come. ``tenants``: that have keys, 0: nobody has; models that are configured,
    and that are served now."""
    return (tenants or max(configured, served)) == 1


def offline_account(side: str) -> str:
    """Of an offline request on a ``side``: "left", "right", or "" where there is none. No application is called so, as names
    begin with a letter or a digit."""
    return f":{side or 'offline'}"


def is_offline_account(account: str) -> bool:
    """Whether ``offline_account`` has named it."""
    return account.startswith(":")

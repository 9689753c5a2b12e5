"""Multi-tenancy: the account of a request, which decides its fair share, its KV pages, and its place in a crowded gateway.

Accounts are assigned only here. With API keys an account is a tenant. Without them all clients look alike, and every
application is an account: twenty applications on one server share it fairly. Offline requests have accounts of their own,
one for each side of the dual scanner: they take nothing from others, and the pages of each side are counted apart.
"""

from __future__ import annotations

SIDES = (":left", ":right")


def account_of(tenant: str, application: str) -> str:
    """Return the account of a request. ``tenant``: of the API key; empty without keys."""
    return tenant or application


def is_only_account(tenants: int, configured: int, served: int) -> bool:
    """Return whether there can be only one account.

    tenants: number with keys; 0: there are no keys. configured, served: numbers of models configured, and served now.
    """
    return (tenants or max(configured, served)) == 1


def offline_account(side: str) -> str:
    """Return the account of an offline request on a ``side``: "left", "right", or "" without one.

    No application has such a name, since names begin with a letter or a digit.
    """
    return f":{side or 'offline'}"


def is_offline_account(account: str) -> bool:
    """Return whether the account comes from ``offline_account``."""
    return account.startswith(":")

"""Whose account a request is on: its fair share of a worker's time, its KV pages, its place in a crowded gateway.

Decided here alone. With API keys an account is a tenant. Without them nobody can be told from anybody, and every application
is an account: twenty applications on one server share it fairly.
"""

from __future__ import annotations


def account_of(tenant: str, application: str) -> str:
    """``tenant``: of the API key; empty without keys."""
    return tenant or application

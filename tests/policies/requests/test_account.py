"""Whose account a request is on."""

from __future__ import annotations

from blockwright.policies.requests.account import account_of, is_offline_account, is_only_account, offline_account


def test_with_keys_tenants_are_accounts_and_else_models() -> None:
    assert account_of("team", "m") == "team"
    assert account_of("", "m") == "m"


def test_offline_requests_are_on_accounts_that_nobody_else_has() -> None:
    assert {offline_account(side) for side in ("left", "right", "")} == {":left", ":right", ":offline"}
    assert all(map(is_offline_account, (":left", ":right", ":offline")))
    assert not is_offline_account(account_of("", "left"))


def test_who_is_alone_has_nobody_to_leave_room_for() -> None:
    assert is_only_account(tenants=1, configured=5, served=5), "with keys models are nobody's account"
    assert not is_only_account(tenants=2, configured=1, served=1)
    assert is_only_account(tenants=0, configured=1, served=1)
    assert not is_only_account(tenants=0, configured=1, served=2), "one was added"
    assert not is_only_account(tenants=0, configured=2, served=1), "one may come back"

"""Limits at a gateway whose head is away: its share of them, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.gateway.tenant_accounts import TenantAccounts
from blockwright.policies.requests.rate_limit import Limits, Verdict, share_of
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.runtime.base.clock import ManualClock
from blockwright.runtime.base.errors import DeadlineExceeded, NodeDown

LIMITS = {"a": Limits(requests_per_minute=5, concurrent_requests=3)}


class Node:
    """A node whose limiter is away for a reason, or answers. ``ended``: what the limiter heard of ends."""

    name = "g0"

    def __init__(self, fault: Exception | None) -> None:
        self.fault, self.clock = fault, ManualClock()
        self.ended: list[tuple[Any, ...]] = []

    def ref(self, address: str, kind: object = None) -> Node:
        return self

    async def admit(self, gateway: str, tenant: str, tokens: int) -> Verdict:
        if self.fault is not None:
            raise self.fault
        return Verdict()

    @property
    def end(self) -> Node:
        return self

    def cast(self, *what: Any) -> None:
        self.ended.append(what)


async def charged(accounts: TenantAccounts, node: Any, *, alone: bool = True) -> bool:
    return not (await accounts.charge(node, "a", 10, alone=alone)).refused


async def test_without_a_head_each_gateway_admits_its_share() -> None:
    accounts, node = TenantAccounts("head/limiter", LIMITS, 2), Node(NodeDown("the head is away"))
    assert [await charged(accounts, node) for _ in range(3)] == [True, True, False], "2 of 3 at once"
    accounts.settle(node, "a", 10, 4)  # type: ignore[arg-type]
    assert await charged(accounts, node)
    accounts.settle(node, "a", 10, 4)  # type: ignore[arg-type]
    assert not await charged(accounts, node), "3 of 5 in a minute"
    assert node.ended == []


async def test_with_a_head_the_limiter_counts() -> None:
    accounts, node = TenantAccounts("head/limiter", LIMITS, 2), Node(None)
    assert all([await charged(accounts, node) for _ in range(9)])
    accounts.settle(node, "a", 10, 4)  # type: ignore[arg-type]
    assert node.ended == [("g0", "a", 10, 4)]


@pytest.mark.parametrize(("fault", "alone"), [(NodeDown("away"), False), (DeadlineExceeded("late"), True)])
async def test_else_a_request_is_refused_and_may_be_sent_again(fault: Exception, alone: bool) -> None:
    with pytest.raises(RequestRefused, match="the account of tenant 'a' cannot be read now"):
        await charged(TenantAccounts("head/limiter", LIMITS, 2), Node(fault), alone=alone)


def test_a_share_is_at_least_one_and_nothing_stays_nothing() -> None:
    shared = share_of(Limits(requests_per_minute=5, tokens_per_day=1), 4)
    assert (shared.requests_per_minute, shared.tokens_per_day, shared.concurrent_requests) == (2, 1, 0)

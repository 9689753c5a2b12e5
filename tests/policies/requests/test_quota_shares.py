"""Shares of tenants' limits: together they are the limit, by need; gateways keep the last, and the next head learns."""

from __future__ import annotations

import random

from blockwright.policies.requests.quota_shares import NeedOfGateways, QuotaShare, SharedQuotas, share_of
from blockwright.policies.requests.rate_limit import EVERYBODY, Limits, Quotas, TakenQuota
from blockwright.tests.claims import claim

NAMES = ("g0", "g1", "g2")
LIMITS = {"a": Limits(requests_per_minute=60, tokens_per_minute=6000, tokens_per_day=9000, concurrent_requests=12)}


class Server:
    """A limiter and gateways, on one clock."""

    def __init__(self, limits: dict[str, Limits]) -> None:
        self.limits, self.now = limits, 0.0
        self.gateways = {name: SharedQuotas(limits) for name in NAMES}
        self.heads = 0
        self.begin()

    def begin(self) -> None:
        """Start a limiter that knows nothing."""
        self.heads += 1
        self.quotas, self.need = Quotas(self.limits), NeedOfGateways()

    def share(self, *names: str) -> None:
        """A second is over."""
        for name in names or NAMES:
            gateway = self.gateways[name]
            counted = gateway.report(self.now, self.now) if gateway.lost or not gateway.limiter else {}
            for tenant, taken in counted.items():
                self.quotas.absorb(tenant, taken, name, self.now, self.now)
            self.need.look(name)
            made = share_of(self.quotas, self.need, name, len(NAMES), (self.now, self.now))
            gateway.take(QuotaShare(f"limiter {self.heads}", made.others, made.accounts), self.now)

    def ask(self, name: str, tokens: int = 10, tenant: str = "a") -> bool:
        """A request at a gateway; whether it is admitted."""
        gateway = self.gateways[name]
        if gateway.lost:
            return not gateway.admit(tenant, tokens, self.now, self.now).refused
        self.need.note(tenant, name)
        verdict = self.quotas.admit(tenant, tokens, self.now, self.now, name)
        if not verdict.refused:
            gateway.begun(tenant)
        return not verdict.refused

    def end(self, name: str, tokens: int = 10, tenant: str = "a") -> None:
        gateway = self.gateways[name]
        if not gateway.lost:
            self.quotas.end(tenant, tokens, tokens, self.now, name)
        gateway.end(tenant, tokens, tokens, self.now)

    def lose(self) -> None:
        for gateway in self.gateways.values():
            gateway.lose(self.now, self.now)


def test_parts_follow_the_need_and_are_the_whole() -> None:
    need = NeedOfGateways()
    for _ in range(9):
        need.note("a", "g0")
    for name in NAMES:
        need.look(name)
    parts = [need.part("a", name, 3) for name in NAMES]
    assert parts == [10 / 12, 1 / 12, 1 / 12]
    assert [need.part("b", name, 3) for name in NAMES] == [1 / 3] * 3
    need.look("g0")
    assert need.part("a", "g0", 3) == 5.5 / 7.5, "half of it is forgotten in a second"
    need.forget("g0")
    assert need.part("a", "g0", 3) == 1 / 3
    for _ in range(20):
        need.look("g0")
    assert not need._eased, "nothing is kept of what is long ago"


@claim("Limits of tenants hold over all gateways, within one share, also while there is no head", of="security")
def test_all_together_keep_the_limits_without_a_head() -> None:
    draw = random.Random(3)
    for _ in range(20):
        server = Server(LIMITS)
        server.share()
        for _ in range(draw.randrange(1, 10)):
            server.ask(draw.choice(NAMES))
        server.share()
        before = 60 - round(server.quotas.left("a", server.now, server.now).requests)
        server.lose()
        admitted = dict.fromkeys(NAMES, 0)
        running = {name: server.gateways[name].report(0.0, 0.0)["a"].running for name in NAMES}
        for _ in range(200):
            name = draw.choice(NAMES)
            if server.ask(name):
                admitted[name] += 1
                if draw.random() < 0.9:
                    server.end(name)
                else:
                    running[name] += 1
        assert before + sum(admitted.values()) <= 60 + len(NAMES), "of requests in a minute"
        assert sum(running.values()) <= 12 + len(NAMES), "of running ones"
        assert sum(admitted.values()) > 0, "a server without a head admits"


def test_a_busy_gateway_keeps_most_without_a_head() -> None:
    server = Server({"a": Limits(requests_per_minute=60)})
    for _ in range(4):
        server.share()
        for _ in range(5):
            assert server.ask("g0")
    server.share()
    server.lose()
    busy, idle = (sum(server.ask(name) for _ in range(60)) for name in ("g0", "g1"))
    assert (busy > 4 * idle, idle >= 1) == (True, True)
    assert 20 + busy + idle <= 60 + 2
    server.now += 60.0
    again = sum(server.ask("g0") for _ in range(60))
    assert busy <= again < 60, "it comes back with time, its part alone"


@claim("A new head learns from the gateways what was taken of the limits", of="security")
def test_the_next_head_begins_with_what_gateways_counted() -> None:
    server = Server(LIMITS)
    server.share()
    for name in ("g0", "g0", "g1"):
        assert server.ask(name, 100)
    server.share()
    server.lose()
    assert server.ask("g2", 50)
    server.begin()
    server.share()
    left = server.quotas.left("a", server.now, server.now)
    assert left.running == 12 - 4
    assert abs(left.requests - (60 - 4)) <= 3
    assert abs(left.tokens - (6000 - 350)) <= 3
    assert abs(left.today - (9000 - 350)) <= 3
    server.end("g0", 100)
    assert server.quotas.left("a", server.now, server.now).running == 12 - 3
    assert not server.gateways["g0"].lost


def test_who_sent_nothing_has_its_part_too() -> None:
    server = Server({EVERYBODY: Limits(requests_per_minute=30, tokens_per_day=100)})
    server.share()
    server.lose()
    assert sum(server.ask("g0", tenant="new") for _ in range(30)) == 3, "a third of the tokens of a day"
    server.now += 86_400.0
    assert server.ask("g0", tenant="new"), "and of the next one"
    lone = SharedQuotas({})
    lone.lose(0.0, 0.0)
    assert not lone.admit("anyone", 10**9, 0.0, 0.0).refused, "no limit stays none"


def test_small_limits_are_never_none() -> None:
    server = Server({"a": Limits(requests_per_minute=1, concurrent_requests=1)})
    server.share()
    server.lose()
    assert [server.ask(name) for name in NAMES] == [True] * 3, "at most one more at each gateway"
    assert [server.ask(name) for name in NAMES] == [False] * 3


def test_what_quotas_count_for_shares() -> None:
    quotas = Quotas({"a": Limits(requests_per_minute=60, concurrent_requests=2)})
    assert (quotas.taken("b", 0.0, 0.0), quotas.tenants) == (TakenQuota(), [])
    quotas.admit("a", 5, 0.0, 0.0, "g0")
    assert quotas.running("a", "g0") == 1
    assert quotas.taken("a", 0.5, 0.0) == TakenQuota(1, 0.5, 0.0, 5)
    quotas.count("a", "g0", 0, 0.5)
    assert quotas.left("a", 0.5, 0.0) == TakenQuota(2, 59.5, 0.0, 0)

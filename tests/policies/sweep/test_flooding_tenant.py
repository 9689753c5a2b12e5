"""One flooding tenant beside a steady one, in virtual time: the sweep machine, a device that costs what a table says.

The table is the one of docs/serving.md (a sweep takes 20 ms and a tenth of a millisecond for each token).
"""

from __future__ import annotations

import random
from statistics import median

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.urgency import urgency
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import Submission, TokensEmitted
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts, some

from ..sweep_world import chain, replica, submission

PACE = Coefficients(base=0.02, token=0.0001)
TARGET = chain("base", page_size=16)
ROUTE = replica("w0", TARGET)
PROMPT = 64
ANSWER = 48
ROWS = 32
SECONDS = 60.0
FLOODS = [(PROMPT, 1 / 70), (300, 1 / 25), (900, 1 / 10)]  # tokens of a prompt, seconds between two


def requests(tenant: str, gap: float, prompt: int, seed: int, tier: str = "default") -> list[Submission]:
    """Poisson arrivals for a minute; no two prompts share anything."""
    chance = random.Random(f"{tenant} {seed}")
    found = []
    now = 0.0
    while (now := now + chance.expovariate(1 / gap)) < SECONDS:
        tokens = [chance.randrange(1 << 20) for _ in range(prompt)]
        name = f"{tenant}{len(found)}"
        fields = {"tenant": tenant, "arrival": now, "priority": urgency(tier, 0)}
        found.append(submission(name, tokens, prompt + ANSWER, ROUTE.id, page_size=16, **fields))
    return found


def latencies(asked: list[Submission], accounts: dict[str, str], **more: object) -> dict[str, list[float]]:
    """Seconds of each request, by tenant. ``accounts``: whose account a tenant's requests are on."""
    numbers = {"budget": 256 << 20, "page_size": 16, "max_rows": ROWS, **more}
    state = SweepState(SweepConfig(worker="w0", numerics="fake", slot_unit=1024, **numbers))  # type: ignore[arg-type]
    state.apply(RoutesChanged(1, [TARGET], [ROUTE], [ROUTE]), 0.0)
    arrivals = sorted(asked, key=lambda s: s.arrival)
    found: dict[str, list[float]] = {s.tenant: [] for s in asked}
    by_name = {s.request: s for s in asked}
    now, at = 0.0, 0
    while at < len(arrivals) or state.running or state.waiting:
        while at < len(arrivals) and arrivals[at].arrival <= now:
            came, at = arrivals[at], at + 1
            fields = {"tenant": accounts[came.tenant], "arrival": came.arrival, "priority": came.priority}
            again = submission(came.request, came.tokens, came.max_length, ROUTE.id, page_size=16, **fields)
            state.apply(again, now)
        plan = state.plan(now)
        if plan is None:
            now = arrivals[at].arrival
            continue
        now += cost(plan, PACE)
        state.commit(plan, SweepResult(plan.number, [1] * len(plan.sample)), now)
        for effect in state.take_effects().news:
            if isinstance(effect, TokensEmitted) and effect.finish and by_name[effect.request].arrival < SECONDS:
                request = by_name[effect.request]
                found[request.tenant].append(now - request.arrival)
        if now > 2 * SECONDS:  # the flood goes on for longer than anybody waits
            break
    return found


@claim("A flooding tenant does not double the median latency of another tenant", of="fine-tunes")
@pytest.mark.parametrize(("prompt", "gap"), some(FLOODS, *FLOODS[::2]))
@pytest.mark.parametrize("seed", parts(2, 1))
def test_a_flooding_tenant_does_not_double_the_median_latency_of_a_steady_one(prompt: int, gap: float, seed: int) -> None:
    """Up to three times what the worker can do, in short or long prompts, beside a request each second and a half."""
    steady, flood = requests("steady", 1.5, PROMPT, seed), requests("flood", gap, prompt, seed)
    own = {"steady": "steady", "flood": "flood"}
    alone = median(latencies(steady, own)["steady"])
    fair = median(latencies(steady + flood, own)["steady"])
    first_come = median(latencies(steady + flood, dict.fromkeys(own, "all"))["steady"])
    assert fair < 2 * alone
    assert first_come > 4 * alone


def test_nor_does_one_that_asks_for_a_higher_tier() -> None:
    steady, flood = requests("steady", 1.5, PROMPT, 0), requests("flood", 1 / 70, PROMPT, 0, "priority")
    own = {"steady": "steady", "flood": "flood"}
    assert median(latencies(steady + flood, own)["steady"]) < 2 * median(latencies(steady, own)["steady"])


def test_the_steady_tenant_gets_its_weight() -> None:
    """Both flood: of two equal crowds that with weight three ends three times as many requests in the same time."""
    crowds = requests("a", 1 / 70, PROMPT, 0) + requests("b", 1 / 70, PROMPT, 0)
    done = latencies(crowds, {"a": "a", "b": "b"}, tenant_weights={"a": 3})
    assert 2.7 < len(done["a"]) / len(done["b"]) < 3.3


@pytest.mark.nightly
def test_accounts_that_ask_for_the_same_lose_little_by_it() -> None:
    """Four crowds with long prompts: what they get together is nearly what one account gets."""
    crowds = [r for n, name in enumerate("abcd") for r in requests(name, 1 / 10, 300, n)]
    apart, together = (latencies(crowds, accounts) for accounts in (dict.fromkeys("abcd", "all"), {n: n for n in "abcd"}))
    done = [sum(map(len, found.values())) for found in (apart, together)]
    assert done[1] > 0.95 * done[0]
    ends = [len(found) for found in together.values()]
    assert max(ends) < 1.05 * min(ends)


def test_twenty_applications_share_whatever_their_number_of_requests() -> None:
    """Accounts of unlike demand: nobody below its share waits behind the others' crowds."""
    asked = [r for n in range(20) for r in requests(f"app{n}", 0.03 if n < 4 else 3.0, 16, n)]
    found = latencies(asked, {f"app{n}": f"app{n}" for n in range(20)})
    small = median([one for n in range(4, 20) for one in found[f"app{n}"]])
    crowd = median([one for n in range(4) for one in found[f"app{n}"]])
    assert 4 * small < crowd

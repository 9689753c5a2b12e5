"""One worker with offline and online requests."""

from __future__ import annotations

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.account import offline_account
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.state import SweepState

from ..sweep_world import World, chain, replica, submission

BASE = chain("base")
CHUNK = 64 * 1024
COSTS = Coefficients(base=0.001, read=0.01, token=0.0001, beyond=0.002, context=1e-6, prefill=1e-7)


def world(pages: int = 100, **more: object) -> World:
    """One worker with memory for so many pages of 4 tokens; what sweeps cost is known."""
    numbers = {"chunk_size": 8, "max_rows": 8, "sweep_tokens": 32, "costs": COSTS, **more}
    return World(["w0"], [BASE], [replica("w0", BASE)], budget=pages * CHUNK, **numbers)


def offline(
    name: str, prompt: list[int], answer: int, arrival: float = 0.0, side: str = "left", **more: object
) -> Submission:
    account = offline_account(side)
    return submission(name, prompt, len(prompt) + answer, more.pop("route", "base@w0"), arrival=arrival, tenant=account,
                      priority=offline_urgency(), **more)  # fmt: skip


def online(name: str, prompt: list[int], answer: int, arrival: float = 0.0, route: str = "base@w0") -> Submission:
    return submission(name, prompt, len(prompt) + answer, route, arrival=arrival, tenant="a")


def commit(state: SweepState, plan: SweepPlan) -> None:
    state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)

"""What a user's test of actors with faults looks like."""

from __future__ import annotations

import pytest

from blockwright.runtime import Actor, Node, RuntimeFault, endpoint
from blockwright.runtime.testing import Simulation


class Account(Actor):
    def __init__(self, money: int) -> None:
        self.money = money

    @endpoint
    async def pay(self, to: str, amount: int) -> int:
        self.money -= amount
        return await self.node.ref(to).receive(amount, timeout=2.0)

    @endpoint
    async def receive(self, amount: int) -> int:
        self.money += amount
        return self.money


@pytest.mark.seeds(10)
def test_money_is_never_made(simulation):
    accounts = []

    async def setup(node: Node) -> None:  # on each worker node
        accounts.append(Account(100))
        await node.spawn(accounts[-1], name="account")

    async def scenario(sim: Simulation) -> None:  # on the head
        for _ in range(50):
            source, target = sim.random.sample(sim.names, 2)
            try:
                await sim.head.ref(f"{source}/account").pay(f"{target}/account", 1, timeout=3.0)
            except RuntimeFault as fault:  # money may be lost on the way, never made
                sim.note(source, "paid in vain:", type(fault).__name__)
        await sim.until_calm()

    simulation(nodes=3, faults=5, restart=None, setup=setup).run(scenario)
    assert sum(account.money for account in accounts) <= 300

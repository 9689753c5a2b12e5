"""A seeded schedule of requests with drafts, whatever draws these: played to its end, and judged by its tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from blockwright.policies.model.chain import Route

from .sweep_world import World


class DraftSchedule:
    """One seeded play: requests come, are cancelled, move and lose their worker, and what draws drafts comes and goes.

    ``homes``: the routes of requests. ``drawing``: routes that draw drafts; each stays with the chance ``staying`` when
    they change. ``others``: routes that are always there.
    """

    def __init__(
        self,
        chance: random.Random,
        world: World,
        homes: Sequence[Route],
        drawing: Sequence[Route],
        staying: float,
        others: Sequence[Route] = (),
    ) -> None:
        self.chance, self.world = chance, world
        self.homes, self.others = homes, others
        self.drawing, self.staying = drawing, staying
        self.want: dict[str, list[int]] = {}

    def play(self) -> None:
        """Play to the end. Raises AssertionError if a request has other tokens than without drafts, or memory is left."""
        for number in range(10):
            self.submit(f"r{number}", float(number))
            self.go_on(self.chance.randrange(12))
            happens = self.chance.random()
            if happens < 0.15:
                self.cancel()
            elif happens < 0.35:
                self.move()
            elif happens < 0.5:
                staying = [one for one in self.drawing if self.chance.random() < self.staying]
                self.world.publish([*self.homes, *staying, *self.others])
            elif happens < 0.55 and len(self.world.workers) > 1:
                self.kill()
        self.world.run(self.chance.randrange(1 << 30))
        self.forget()
        assert {name: self.world.emitted[name] for name in self.want} == self.want
        assert self.want.keys() <= self.world.finished.keys()
        self.world.assert_quiet()

    def submit(self, name: str, arrival: float) -> None:
        """Submit a request, and note its tokens in ``want``."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remove from ``want`` what could not end."""

    def go_on(self, moves: int) -> None:
        for _ in range(moves):
            able = self.world.moves()
            self.chance.shuffle(able)
            any(self.world._move(kind, what) for kind, what in able)

    def unfinished(self) -> list[str]:
        return sorted(self.want.keys() - self.world.finished.keys())

    def cancel(self) -> None:
        if there := self.unfinished():
            name = self.chance.choice(there)
            self.world.cancel(name)
            del self.want[name]

    def move(self) -> None:
        there = self.unfinished()
        if there and len(self.world.workers) > 1 and not self.exporting():
            name = self.chance.choice(there)
            application = self.world.routes[self.world.submitted[name].route].application
            if to := [one for one in self.homes if one.application == application]:
                self.world.move(name, self.chance.choice(to).id)

    def kill(self) -> None:
        """Kill a worker with all that it has; its sequences begin anew on the other."""
        while self.exporting():
            self.go_on(1)
        dead = self.chance.choice(["w0", "w1"])
        self.world.kill(dead)
        for name in self.unfinished():
            route = self.world.routes[self.world.submitted[name].route]
            if dead in {hop.worker for hop in route.hops}:
                left = next(iter(self.world.workers))
                self.world.hand_over(name, f"{route.application}@{left}")

    def exporting(self) -> bool:
        return any(waits for *_, waits in self.world.exports.values())

"""Gateway and controller together while models are loaded on demand and variants serve meanwhile: every request ends, and no
load waits for a request that a variant serves.

Each running sequence takes ``kv`` components' room, so that requests of variants can hold up a load. Loads take time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from blockwright.policies.control import events
from blockwright.policies.requests.book import messages
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.sweep.events import GivenBack
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, ServingCluster, application, generation, reference
from blockwright.tests.policies.requests.book.gateway_bench import gateway

MODELS = tuple(application(name, f"x{name.upper()}z", kv=KV) for name in "abc")
LOAD = 4  # steps that a block takes to load
STEPS = 4000  # in which all requests must end
SPARE = 1 << 20  # bytes for KV beside the components that have room
FOREVER = 3000  # tokens of an answer that outlives every load


class BridgingCluster(ServingCluster):
    """A cluster of models of which few fit, each with the variants that are the other models' chains."""

    def __init__(self, seed: int, *workers: str, room: int, switches: int = 2, kv: int = 1) -> None:
        self.later: list[tuple[int, events.Effect]] = []  # step in which an effect is carried out
        self.count, self.kv = 0, kv
        book = gateway(applications=tuple(one.name for one in MODELS), switches=switches)
        super().__init__(seed, book, *workers, served=MODELS, room=room)
        those = enumerate(permutations(MODELS, 2))
        self(events.Vary(tuple(replace(b, name=f"v{n}", model="", variant_of=a.name) for n, (a, b) in those)))
        self.bridged: set[str] = set()  # requests that have begun on a variant while their model was away
        self.asked_for: dict[str, messages.Generation] = {}

    def capacity(self, worker: str) -> events.KvCapacity:
        return self.workers[worker].capacity(SPARE)

    def take(self, effect: events.Effect) -> list[events.Event]:
        if isinstance(effect, events.Load | events.RecheckLater):
            steps = LOAD if isinstance(effect, events.Load) else max(1, round(100 * effect.seconds))
            self.later.append((self.count + steps, effect))
            return []
        found: list[events.Event] = super().take(effect)
        if isinstance(effect, events.Publish):
            self._give_back()
        return found

    def answers(self, effect: events.Effect) -> list[events.Event]:
        match effect:
            case events.AskUsage():
                return [events.UsageAnswer(self.book.usage(self.now))]
            case events.RecheckLater(_, worker, name):
                return [events.Recheck(worker, name)]
            case events.Load(name) if name in self.workers:
                self.workers[name].ending = self.kv * len(self.workers[name].running)
        return super().answers(effect)

    def _give_back(self) -> None:
        """Have workers return the requests whose routes have ended."""
        for worker in self.workers.values():
            for name, (s, _, _) in list(worker.running.items()):
                if s.route not in self.state.routes:
                    del worker.running[name]
                    worker.serial += 1
                    news = [GivenBack(s.gateway, name, s.attempt, "route")]
                    report = SweepReport(worker.name, worker.incarnation, worker.serial, worker.serial, news)
                    worker.unacknowledged[worker.serial] = report
                    self.send(report)

    def perform(self, effect: object) -> None:
        super().perform(effect)
        if isinstance(effect, messages.WantRoutes):
            self(events.ApplicationsWanted(effect.applications))

    def ask(self, name: str, model: str, tokens: int) -> None:
        """Send a request."""
        self.asked_for[name] = asked = generation(name, 5, tokens, model)
        self.feed(asked)

    def step(self) -> None:
        self.count += 1
        due = [effect for step, effect in self.later if step <= self.count]
        self.later = [one for one in self.later if one[0] > self.count]
        for effect in due:
            for answer in self.answers(effect):
                self(answer)
        for effect in self.pending(events.AwaitQuiet):
            active = self.book.parts.active.values()
            if not any(one.placement.workers for one in active if one.application == effect.application):
                self.reply(effect)
        super().step()
        if self.count % 10 == 0:
            self.feed(messages.GatewayTick())
            self.heartbeats()
        self.bridged.update(self.book.parts.capacity_waits.bridging)

    def there(self) -> set[str]:
        """Return the models that are loaded."""
        return {one.application for one in self.state.routes.values()} & {one.name for one in MODELS}

    def until(self, name: str, steps: int = 300) -> None:
        """Let time pass until a model is loaded."""
        for _ in range(steps):
            if name in self.there():
                return
            self.step()
        raise AssertionError(f"{name} is not loaded after {steps} steps: {self.state.demand.wanted}")


def away(made: BridgingCluster) -> str:
    """Return a model that is not loaded."""
    return next(one.name for one in MODELS if one.name not in made.there())


def begun(room: int, kv: int = 1) -> BridgingCluster:
    """A cluster that has loaded what has room, variants included."""
    made = BridgingCluster(1, "w0", room=room, kv=kv)
    for _ in range(200):
        made.step()
    return made


@claim("No load on demand waits for a request that a variant serves meanwhile", of="adaptive")
@pytest.mark.parametrize("room", [3, 4], ids=["room for one model", "for two"])
def test_the_load_for_a_request_does_not_wait_for_it(room: int) -> None:
    """The answer would take far longer than the load: where that needs the donor's memory, the variant ends first."""
    made = begun(room)
    model = away(made)
    made.ask("r", model, FOREVER)
    assert made.book.parts.active["r"].variant, "it begins at once"
    made.until(model)
    made.ask("s", model, 4)
    for _ in range(200):
        made.step()
    assert made.finish.get("s") == "length"
    assert made.book.parts.active["r"].application == model
    assert len(made.answered["r"]) > 100


def test_where_the_load_fits_beside_the_donor_the_first_token_comes_before_it_ends() -> None:
    made = begun(4, kv=0)
    model = away(made)
    made.ask("r", model, 400)
    while model not in made.there():
        made.step()
    assert made.answered["r"]
    made.settle(STEPS)
    assert made.answered["r"] == reference(made.asked_for["r"])
    last = made.book.describe("r").switches[-1]
    assert last["target"] == model
    assert last["why"].startswith("its model has been loaded: "), "none had to end for it"


@claim("With loads on demand and variants every request ends with its tokens, none lost or repeated", of="adaptive")
@pytest.mark.parametrize("part", range(0, 30, 10))
def test_every_request_ends(part: int) -> None:
    bridged = 0
    for seed in range(part, part + 10):
        random = Random(f"bridges/{seed}")
        workers = [f"w{n}" for n in range(random.choice([1, 1, 2]))]
        made = BridgingCluster(seed, *workers, room=random.choice([3, 4]), switches=random.choice([0, 1, 2]))
        for number in range(10):
            for _ in range(random.choice([3, 30, 200])):
                made.step()
            made.ask(f"r{number}", random.choice("abc"), random.randrange(1, 120))
            if random.random() < 0.1:
                made.kill(worker := random.choice(workers))
                made.begin(worker)
        made.settle(STEPS)
        assert not made.failures
        for name, asked in made.asked_for.items():
            assert made.answered[name] == reference(asked), (seed, name)
        bridged += len(made.bridged)
    assert bridged > 10

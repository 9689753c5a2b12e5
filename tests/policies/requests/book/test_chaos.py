"""Whatever dies or gets lost, every stream is complete and exact."""

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.parts import examples
from blockwright.tests.policies.requests.book.fake_fleet import Fleet, generation, reference, route

REPLICAS = [route("w0"), route("w1"), route("w2")]
PIPELINES = [route("w0", "w1"), route("w2")]


def ask(fleet: Fleet, count: int) -> list:
    asked = []
    for i in range(count):
        sampling = SamplingParams(seed=fleet.random.randrange(1000))
        stop = [fleet.random.randrange(997) for _ in range(40)]
        g = generation(
            f"r{i}", fleet.random.randrange(1, 20), fleet.random.randrange(1, 30), sampling=sampling, stop_tokens=stop
        )
        asked.append(g)
        fleet.feed(g)
    return asked


def assert_exact(fleet: Fleet, asked: list) -> None:
    for g in asked:
        expected = reference(g)
        assert fleet.answers[g.id] == expected
        assert fleet.finish[g.id] == ("stop" if expected[-1] in g.stop_tokens else "length")


@examples(60)
@given(seed=st.integers(0, 2**32), pipeline=st.booleans())
def test_random_kills_drops_and_duplicates_leave_every_stream_exact(seed, pipeline):
    fleet = Fleet(seed, PIPELINES if pipeline else REPLICAS, drop=0.2, double=0.2)
    for worker in ("w0", "w1", "w2"):
        fleet.start(worker)
    asked = ask(fleet, 8)
    kills = 2  # a request present at three deaths would rightly fail
    while fleet.state.parts.active and kills:
        for _ in range(fleet.random.randrange(1, 12)):
            fleet.step()
        if fleet.random.random() < 0.5:
            fleet.heartbeats()
        victim = fleet.random.choice(["w0", "w1", "w2"])
        if victim in fleet.workers:
            fleet.kill(victim)
            kills -= 1
        elif fleet.random.random() < 0.5:
            fleet.start(victim)
    for worker in ("w0", "w1", "w2"):
        if worker not in fleet.workers:
            fleet.start(worker)
    fleet.settle()
    assert not fleet.failures
    assert_exact(fleet, asked)


@examples(20)
@given(seed=st.integers(0, 2**32))
def test_a_poisonous_request_fails_alone(seed):
    fleet = Fleet(seed, REPLICAS)
    for worker in ("w0", "w1", "w2"):
        fleet.start(worker)
    asked = ask(fleet, 6)
    fleet.poison = {"r3"}
    for _ in range(2000):
        if not fleet.state.parts.active:
            break
        fleet.step()
        fleet.heartbeats()
        for worker in ("w0", "w1", "w2"):
            if worker not in fleet.workers:
                fleet.start(worker)
    assert {f.request: f.refused.why for f in fleet.failures.values()} == {"r3": Refusal.POISON}
    assert_exact(fleet, [g for g in asked if g.id != "r3"])


@examples(20)
@given(seed=st.integers(0, 2**32))
def test_the_only_worker_may_die_and_come_back(seed):
    fleet = Fleet(seed, [route("w0")], drop=0.1)
    fleet.start("w0")
    asked = ask(fleet, 5)
    for _ in range(2):
        for _ in range(fleet.random.randrange(10)):
            fleet.step()
        fleet.kill("w0")
        fleet.step()
        fleet.start("w0")
    fleet.settle()
    assert_exact(fleet, asked)

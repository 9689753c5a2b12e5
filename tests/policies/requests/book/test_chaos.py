"""Whatever dies or gets lost, every stream is complete and exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.control.drop_events import DropParameters
from blockwright.policies.model.chain import Hop
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.fake_cluster import ServingCluster, generation, reference
from blockwright.tests.parts import examples
from blockwright.tests.policies.requests.book.gateway_bench import gateway

TRIO = ("w0", "w1", "w2")
PAIR = DropParameters("m", (Hop("w0", 0, 2), Hop("w1", 2, 4)))


def ask(cluster: ServingCluster, count: int) -> list:
    asked = []
    for i in range(count):
        sampling = SamplingParams(seed=cluster.random.randrange(1000))
        stop = [cluster.random.randrange(997) for _ in range(40)]
        g = generation(
            f"r{i}", cluster.random.randrange(1, 20), cluster.random.randrange(1, 30), sampling=sampling, stop_tokens=stop
        )
        asked.append(g)
        cluster.feed(g)
    return asked


def assert_exact(cluster: ServingCluster, asked: list) -> None:
    for g in asked:
        expected = reference(g)
        assert cluster.answered[g.id] == expected
        assert cluster.finish[g.id] == ("stop" if expected[-1] in g.stop_tokens else "length")


def troubled(cluster: ServingCluster) -> None:
    """Kill two workers at some time, and start some again; all of them live in the end."""
    kills = 2  # a request present at three deaths would rightly fail
    while cluster.book.parts.active and kills:
        for _ in range(cluster.random.randrange(1, 12)):
            cluster.step()
        if cluster.random.random() < 0.5:
            cluster.heartbeats()
        victim = cluster.random.choice([*cluster.state.workers])
        if victim in cluster.workers:
            cluster.kill(victim)
            kills -= 1
        elif cluster.random.random() < 0.5:
            cluster.begin(victim)
    for worker in cluster.state.workers:
        cluster.begin(worker)
    cluster.settle()
    assert not cluster.failures


@pytest.mark.parametrize("routes", ["replicas", "pipelines", "dropped"])
@examples(25)
@given(seed=st.integers(0, 2**32))
def test_random_kills_drops_and_duplicates_leave_every_stream_exact(routes, seed):
    workers, span = (("w0", "w1", "w2", "w3"), 2) if routes == "pipelines" else (TRIO, 1)
    cluster = ServingCluster(seed, gateway(), *workers, span=span, drop=0.2, double=0.2)
    if routes == "dropped":
        cluster.order(PAIR)
        cluster.left()
        cluster.switched()
    among = {"replicas": ["m@w0", "m@w1", "m@w2"], "pipelines": ["m@w0+w1", "m@w2+w3"], "dropped": ["m@w0+w1", "m@w2"]}
    assert cluster.open() == among[routes]
    asked = ask(cluster, 8)
    troubled(cluster)
    assert_exact(cluster, asked)


@examples(20)
@given(seed=st.integers(0, 2**32))
def test_a_poisonous_request_fails_alone(seed):
    cluster = ServingCluster(seed, gateway(), *TRIO)
    asked = ask(cluster, 6)
    cluster.poison = {"r3"}
    for _ in range(2000):
        if not cluster.book.parts.active:
            break
        cluster.step()
        cluster.heartbeats()
        for worker in TRIO:
            cluster.begin(worker)
    assert {f.request: f.refused.why for f in cluster.failures.values()} == {"r3": Refusal.POISON}
    assert_exact(cluster, [g for g in asked if g.id != "r3"])


@examples(20)
@given(seed=st.integers(0, 2**32))
def test_the_only_worker_may_die_and_come_back(seed):
    cluster = ServingCluster(seed, gateway(), "w0", drop=0.1)
    asked = ask(cluster, 5)
    for _ in range(2):
        for _ in range(cluster.random.randrange(10)):
            cluster.step()
        cluster.kill("w0")
        cluster.step()
        cluster.begin("w0")
    cluster.settle()
    assert_exact(cluster, asked)

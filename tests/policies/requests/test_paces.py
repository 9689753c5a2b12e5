"""Workers are compared by measured costs or by the speeds that they joined with, and equal ones are equally fast."""

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import Step, SweepPlan
from blockwright.policies.requests.paces import BATCH, Paces, WorkerLink, WorkerPaces, compared, token_seconds

ALIVE = ("w0", "w1")


def test_a_token_takes_its_part_of_a_sweep_of_decoding_rows() -> None:
    costs = Coefficients(base=0.1, step=0.02, read=0.3, token=0.004, beyond=0.005, row=0.001)
    rows = [*range(BATCH)]
    plan = SweepPlan(number=1, row=rows, start=[0] * BATCH, count=[1] * BATCH, steps=[Step(0, rows, nbytes=1)], sample=rows)
    assert abs(token_seconds(costs) - cost(plan, costs) / BATCH) < 1e-12


def test_nearly_equal_times_are_equal_and_others_are_rounded() -> None:
    assert compared({"w0": 1.0, "w1": 1.05}) == Paces({}, 1.0)
    found = compared({"w0": 1.0, "w1": 1.95, "w2": 100.0})
    assert [found.of(worker) for worker in ("w0", "w1", "w2", "w9")] == [1.0, 2.0, 8.0, 1.0]
    assert compared({}) == compared({"w0": 0.0}) == Paces()


def test_nothing_is_compared_while_a_live_worker_is_unknown() -> None:
    paces = WorkerPaces()
    paces.hear("w0", 4e9, None, ALIVE)
    assert paces.joined == Paces()
    paces.hear("w1", 2e9, None, ALIVE)
    assert paces.joined.of("w1") == 2.0
    assert paces.joined.seconds(8_000_000_000) == 2.0
    assert paces.measured is paces.joined


def test_measured_costs_go_before_speeds_once_all_are_known() -> None:
    paces = WorkerPaces()
    for worker, token in (("w0", 0.003), ("w1", 0.001)):
        paces.hear(worker, 1e9, Coefficients(token=token), ALIVE)
    assert (paces.measured.of("w0"), paces.measured.seconds(99)) == (8 / 3, 0.001)
    assert paces.joined.slower == {}
    paces.hear("w1", 1e9, None, ALIVE)
    assert paces.measured.of("w0") == 8 / 3, "a heartbeat without costs takes none back"
    paces.lose("w1", ["w0"])
    assert paces.measured.slower == {}
    paces.compare(ALIVE)
    assert paces.measured == Paces(), "its next life has said nothing yet"


def test_a_link_takes_its_latency_and_the_bytes() -> None:
    assert WorkerLink(0.5, 100.0).seconds(50) == 1.0
    assert WorkerLink(0.5, 0.0).seconds(50) == 0.5

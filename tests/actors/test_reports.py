"""What a worker tells gateways and other workers: numbers without gaps, few messages."""

from __future__ import annotations

from blockwright.actors.worker.reports import TOGETHER, Reports, by_worker
from blockwright.policies.sweep.events import LeaseReturned, Preempted, Progressed, Send


def test_a_thousand_leases_are_a_few_messages_in_order() -> None:
    sent = [Send(f"w{i % 2}", LeaseReturned("w9", i)) for i in range(1000)]
    batches = by_worker([*sent, Preempted("head/gateway", "r0")])
    assert len(batches) == 2 * -(-500 // TOGETHER)
    for worker in ("w0", "w1"):
        told = [message for name, batch in batches if name == worker for message in batch]
        assert told == [effect.message for effect in sent if effect.worker == worker]


def test_reports_of_a_gateway_that_is_gone_are_forgotten() -> None:
    reports = Reports("w0", 1)
    for gateway in ("head/gateway", "g1/gateway"):
        reports.make([Progressed(gateway, "r0", 1, 1, 0)], 1, lambda gateway: None)
    reports.forget("g1")
    assert reports.serials == {"head/gateway": 1}
    assert reports.since("g1/gateway", 1) == []
    assert len(reports.since("head/gateway", 1)) == 1
